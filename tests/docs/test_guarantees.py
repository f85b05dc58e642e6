"""Every sentence and every row of the page of guarantees is proven by tests that are named here, and exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from exop.model.slets.slet import spec_of
from exop.runtime.channels import BUILT_IN
from exop.stock.slets import STOCK

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "guarantees.md").read_text(encoding="utf-8")

#: The durable application of the benchmark, and that of stock components, killed at random and at every failpoint.
KILLS = "recovery/test_kills.py::test_killed_at_each_failpoint"
STOCK_KILLS = "recovery/test_stock.py::test_killed_at_each_failpoint"
GOING_ON = "runtime/durable/test_going_on.py::"
HELD = "stock/test_sinks.py::"
LINES = "stock/test_slets.py::test_lines_go_on_where_the_memento_ends"
SOURCES = "testing/test_checks.py::test_the_stock_sources_pass_at_every_cut"
ROAD = "recovery/test_linear_road.py::test_every_answer_is_there_once"
KAFKA = "../plugins/exop-kafka/tests/"
KAFKA_KILLS = KAFKA + "test_recovery.py::test_a_killed_application_continues_exactly_from_its_offsets"
#: The tests that SQLite, in `tests/engine`, and DuckDB pass.
SUITE = "../exop/testing/engine_suite.py::"
ENGINES = "../plugins/exop-spark/tests/slets/test_durable.py::"

#: How a sentence begins, or what stands in the first cell of a row, and the tests in `tests/` that prove it.
PROOFS = {
    "This page states": [KILLS, STOCK_KILLS],
    "*Exactly once*": ["recovery/test_kills.py::test_an_undisturbed_run_is_complete", KILLS],
    "*At least once*": [GOING_ON + "test_effects_are_done_again"],
    "The page [recovery]": ["docs/test_snippets.py::test_links_lead_somewhere"],
    "Every sentence and every row": ["docs/test_guarantees.py::test_every_claim_names_the_tests_that_prove_it"],
    "Without `durable`": [GOING_ON + "test_without_checkpoints_everything_begins_anew"],
    "The contents of memory": [GOING_ON + "test_without_checkpoints_everything_begins_anew"],
    "Output that has left the process": [GOING_ON + "test_without_checkpoints_everything_begins_anew"],
    "A change that `apply` has reported": [
        GOING_ON + "test_a_change_behind_the_last_checkpoint_is_made_again",
        GOING_ON + "test_a_line_that_took_effect_behind_the_last_checkpoint_does_so_again_at_its_item",
    ],
    "If that fails, the application": [
        GOING_ON + "test_a_change_that_cannot_be_made_again_leaves_the_mesh_of_the_checkpoint"
    ],
    "A log on disk that keeps everything": [
        "runtime/durable/test_logs.py::test_a_log_of_an_ended_application_misses_its_oldest_segment"
    ],
    # Sources
    "`stock:count_up`": [STOCK_KILLS],
    "`stock:clock`": [
        "stock/test_clock.py::test_the_times_never_decrease",
        "stock/test_clock.py::test_a_log_keeps_what_a_clock_has_emitted",
    ],
    "`stock:read_lines`": [STOCK_KILLS, SOURCES],
    "`stock:read_csv`": [STOCK_KILLS, "stock/test_sources.py::test_reading_rows"],
    "`stock:read_log`": [STOCK_KILLS, "stock/test_sources.py::test_what_is_not_kept_any_more_is_an_error"],
    "`stock:read_parquet`": [
        STOCK_KILLS,
        "stock/test_sources.py::test_each_file_is_emitted_once_in_the_order_of_the_names",
    ],
    "`kafka:read`": [
        KAFKA_KILLS,
        KAFKA + "test_source.py::test_it_continues_at_every_cut",
        KAFKA + "test_errors.py::test_records_that_are_gone_are_not_skipped",
    ],
    "with its position in its memento": [KILLS, "testing/test_checks.py::test_a_wrong_source_is_told_with_the_reason"],
    "several items per position": [GOING_ON + "test_several_items_per_position"],
    "without a memento": [GOING_ON + "test_a_source_without_a_memento_begins_anew"],
    # Slets
    "state in the memento": [KILLS],
    "with effects outside": [GOING_ON + "test_effects_are_done_again"],
    "`stock:pass_on`": [STOCK_KILLS],
    "`stock:number`": ["stock/test_rows.py::test_numbers_and_samples_go_on_after_a_replacement_while_rows_flow"],
    "`stock:bsort`": [
        "stock/test_order.py::test_behind_a_watermark_a_bsort_with_enough_slack_sorts_the_whole_stream",
        "stock/test_order.py::test_a_delayed_item_leaves_at_the_first_punctuation_after_its_time_and_the_delay",
    ],
    "`stock:ordered`": [
        "stock/test_order.py::test_the_first_item_of_a_key_passes_and_its_repetitions_do_not",
        "stock/test_order.py::test_another_instance_goes_on_while_rows_flow",
    ],
    "`stock:join`": [STOCK_KILLS, "stock/test_joins.py::test_any_streams"],
    "`stock:asof`": ["stock/test_asof.py::test_the_results_do_not_depend_on_how_the_inputs_interleave"],
    "`stock:watermark`": ["bench/test_event_time.py::test_windows_and_late_items_are_those_of_the_sorted_whole"],
    "iterates an input port": [KILLS, GOING_ON + "test_what_a_pulling_slet_has_taken_is_kept"],
    "calls `pull()`": [GOING_ON + "test_what_was_pulled_and_is_kept_in_the_memento"],
    "suspended on an item": [
        GOING_ON + "test_a_suspended_slet_tries_its_item_again",
        GOING_ON + "test_a_second_try_after_recovery_begins_with_the_memento_that_the_failed_call_left",
    ],
    "drives itself (`own_driver=True`), with a `Tie`": [
        KILLS,
        "wiring/test_order.py::test_two_sources_that_meet_before_an_engine_are_refused",
        "wiring/test_order.py::test_an_engine_behind_a_slet_that_gathers_is_put_before_it",
        "hosts/test_any_kill.py::test_any_kill",
    ],
    "`exop_spark.query`": [
        ENGINES + "test_what_was_put_out_before_a_crash_is_not_asked_for_again",
        ENGINES + "test_windows_go_on_where_they_were",
        "recovery/test_spark_kills.py::test_each_window_is_written_once_after_a_kill_of_each_process",
    ],
    "on `exop.engine`": [
        SUITE + "test_every_row_once_and_in_order_after_a_crash",
        SUITE + "test_every_row_once_and_in_order_after_a_kill_at_any_moment",
        SUITE + "test_a_memento_is_restored_elsewhere",
        "testing/test_engine_suite.py::test_a_faulty_engine_fails",
        "../plugins/exop-duckdb/tests/test_duckdb.py::test_the_windows_of_spark_close_at_punctuations",
    ],
    "drives itself without a `Tie`": [GOING_ON + "test_a_slet_that_drives_itself_is_refused"],
    "owns a port, file or device": [
        "change/test_exclusive.py::test_a_successor_that_does_not_open_leaves_the_old_one_open",
        "change/test_any_change.py::test_any_change_with_slets_that_own_something",
        "hosts/test_moves.py::test_an_exclusive_slet_closes_before_it_opens_elsewhere",
    ],
    "Linear Road's `traffic`": [ROAD],
    # Sinks
    "`stock:write_lines`": [
        STOCK_KILLS,
        LINES,
        "rules/test_execution.py::test_rule_8_a_suspended_slet_can_be_repaired_and_tries_the_same_item_again",
        "stock/test_slets.py::test_lines_can_be_read_while_the_stream_rests",
        "runtime/supervision/test_watchdog.py::test_output_is_made_visible_every_second_while_items_come",
    ],
    "`stock:write_sqlite`": [
        STOCK_KILLS,
        "recovery/test_sinks.py::test_failed_checkpoints_failed_commits_and_crashes",
        HELD + "test_with_checkpoints_rows_are_out_with_them",
    ],
    "`stock:write_parquet`": [
        STOCK_KILLS,
        "recovery/test_sinks.py::test_failed_checkpoints_failed_commits_and_crashes",
        HELD + "test_with_checkpoints_rows_are_out_with_them",
    ],
    "`stock:show`": [GOING_ON + "test_effects_are_done_again", "stock/test_slets.py::test_passing_on_and_showing"],
    "`kafka:write`": [
        KAFKA_KILLS,
        KAFKA + "test_sink.py::test_a_checkpoint_fails_while_the_brokers_are_away",
        KAFKA + "test_sink.py::test_items_with_fields_are_json_and_their_key_decides_the_partition",
    ],
    "Linear Road's `answers`": [
        ROAD,
        "apps/linear_road/test_answers.py::test_a_successor_goes_on_where_the_memento_ends",
        "apps/linear_road/test_answers.py::test_an_answer_is_in_the_file_when_the_call_returns",
        "apps/linear_road/test_answers.py::test_emit_is_time_plus_wall_seconds_since_the_question_was_due",
    ],
    "a [group]": ["change/test_any_group.py::test_a_group_gives_for_each_key_what_one_instance_gives"],
    "a sink of yours": [
        GOING_ON + "test_effects_are_done_again",
        "recovery/test_sinks.py::test_the_sink_of_the_page_is_killed",
    ],
    "`write_sqlite` and `write_parquet` hold": [
        HELD + "test_with_checkpoints_rows_are_out_with_them",
        HELD + "test_a_crash_around_the_commit",
    ],
    "Choose `every` accordingly": [HELD + "test_with_checkpoints_rows_are_out_with_them"],
    "Where no checkpoints are taken": [HELD + "test_without_checkpoints_rows_are_out_after_each_lot_and_at_the_end"],
    # Channels
    "`direct`": [KILLS, "contract/test_channels.py::test_what_it_holds_is_plain_data_and_comes_back"],
    "`queue`": [
        KILLS,
        "runtime/channels/test_queue.py::test_what_waits_is_captured_as_plain_data_and_restored_in_order",
    ],
    "`window`": [KILLS, "runtime/channels/test_window.py::test_windows_by_time_hold_what_their_definition_says"],
    "`latch`": [STOCK_KILLS, "contract/test_channels.py::test_what_it_holds_is_plain_data_and_comes_back"],
    "`table`": [STOCK_KILLS, "runtime/channels/test_table.py::test_rows_are_captured_and_restored_with_their_indexes"],
    "`log` in memory": ["runtime/channels/test_log.py::test_capture_and_restore_keep_the_offsets"],
    "`partitioned_log` |": (
        "runtime/channels/test_partitioned_log.py::test_it_goes_on_behind_a_checkpoint_and_later_rows_come_again",
        "runtime/channels/test_partitioned_log.py::test_a_full_disk_stores_no_row_twice",
    ),
    "`log` on disk": [
        STOCK_KILLS,
        "runtime/durable/test_logs.py::test_a_checkpoint_holds_offsets_and_what_comes_again_is_not_appended_twice",
        "runtime/channels/test_log.py::test_control_items_keep_their_places_and_come_once_more_after_a_crash",
    ],
    "`kafka`": [KAFKA_KILLS, KAFKA + "test_channel.py::test_a_full_client_takes_nothing_twice"],
    "A log on disk that several producers fill": [
        STOCK_KILLS,
        "runtime/channels/test_log.py::test_a_stream_that_takes_another_course_is_what_the_log_has_then",
    ],
    "`read_log` does not read such rows": ["stock/test_sources.py::test_what_no_checkpoint_counts_is_not_read_yet"],
}


def claims() -> list[str]:
    """The sentences of the page, and the rows of its tables."""
    found = []
    for block in PAGE.split("\n\n"):
        if block.startswith("|"):
            found += [row.removeprefix("| ") for row in block.splitlines()[2:]]
        elif not block.startswith("#"):
            found += re.split(r"(?<=\.)\s+(?=[A-Z*`])", " ".join(block.split()))
    return found


def names_in(file: Path) -> set[str]:
    """The names of the tests in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")}


def test_every_claim_names_the_tests_that_prove_it():
    """A sentence or row that is new, or begins otherwise now, needs its proof; a proof of nothing is taken out."""
    found = claims()
    assert {claim: [key for key in PROOFS if claim.startswith(key)] for claim in found} == {
        claim: [next((key for key in PROOFS if claim.startswith(key)), None)] for claim in found
    }
    assert {key: sum(claim.startswith(key) for claim in found) for key in PROOFS} == dict.fromkeys(PROOFS, 1)


def test_every_proof_exists():
    """A test that is named is there, under this name."""
    named = {proof for proofs in PROOFS.values() for proof in proofs}
    files = {name: names_in(ROOT / "tests" / name) for name in {proof.partition("::")[0] for proof in named}}
    assert {proof for proof in named if proof.partition("::")[2] not in files[proof.partition("::")[0]]} == set()


def named() -> set[str]:
    """The names in the first cells of the tables."""
    return {name for row in re.findall(r"^\|([^|]*)\|", PAGE, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)}


def test_every_stock_slet_has_a_row():
    """The page tells the guarantee of every stock component."""
    assert {f"stock:{spec_of(one).name}" for one in STOCK} <= named()


def test_every_kind_of_channel_has_a_row():
    """Built-in kinds, each by its name."""
    assert {kind.kind for kind in BUILT_IN} <= named()
