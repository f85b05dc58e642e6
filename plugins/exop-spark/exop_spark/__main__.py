"""`python -m exop_spark`: the command `exop-spark` where its script is not on the path."""

from __future__ import annotations

from .cluster.command import main

raise SystemExit(main())
