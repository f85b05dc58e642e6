"""`python -m exop`: the command line where its script is not on the path."""

from exop.cli import main

raise SystemExit(main())
