"""`python -m wellspoken` is the command `wellspoken`; it stands here for the top of the package."""

from wellspoken.proxy.cli.main import main

raise SystemExit(main())
