"""The options of Spark: those of the platform, and those of the user."""

import pytest
from exop_spark.errors import SparkError
from exop_spark.settings import java_options, spark_options


def test_options_of_the_user_are_added_and_replace_what_may_differ(monkeypatch, tmp_path):
    """The page of Spark, jars, and values with spaces."""
    text = "spark.ui.enabled=true 'spark.executor.extraJavaOptions=-Da=1 -Db=2' spark.jars=/opt/a.jar"
    monkeypatch.setenv("EXOP_SPARK_CONF", text)
    found = spark_options("local", tmp_path, "")
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.executor.extraJavaOptions"] == "-Da=1 -Db=2"
    assert found["spark.jars"] == "/opt/a.jar"


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("ui.enabled=true", "write spark.NAME=VALUE"),
        ("spark.ui.enabled", "write spark.NAME=VALUE"),
        ("spark.sql.session.timeZone=Europe/Zurich", "the queries need 'UTC'; leave it out"),
        ("spark.sql.ansi.enabled=false", "the queries need 'true'; leave it out"),
        ("spark.driver.memory=8g", "set EXOP_SPARK_MEMORY"),
        ("spark.driver.extraJavaOptions=-Xint", "set EXOP_SPARK_JAVA_OPTIONS"),
        ("spark.master=yarn", "give the slets the setting master"),
        ("spark.driver.host=10.0.0.1", "set EXOP_SPARK_HOST"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_a_cure(monkeypatch, tmp_path, text, cure):
    """Before Java starts."""
    monkeypatch.setenv("EXOP_SPARK_CONF", text)
    with pytest.raises(SparkError, match=cure):
        spark_options("local", tmp_path, "")


def test_the_cures_of_those_refusals_work(monkeypatch, tmp_path):
    """The variables that they name have an effect."""
    monkeypatch.setenv("EXOP_SPARK_MEMORY", "8g")
    monkeypatch.setenv("EXOP_SPARK_JAVA_OPTIONS", "-Xint")
    found = java_options(tmp_path)
    assert found["spark.driver.memory"] == "8g"
    assert "-Xint" in found["spark.driver.extraJavaOptions"]
    assert spark_options("yarn", tmp_path, "10.0.0.1")["spark.driver.host"] == "10.0.0.1"


def test_the_log_is_also_kept_where_the_user_wants_it(monkeypatch, tmp_path):
    """Beside the scratch file from which errors are explained."""
    monkeypatch.setenv("EXOP_SPARK_LOG", str(tmp_path / "kept.log"))
    java_options(tmp_path)
    text = (tmp_path / "log4j2.properties").read_text()
    assert f"appender.kept.fileName = {tmp_path}/kept.log" in text
    assert f"appender.file.fileName = {tmp_path}/spark.log" in text
