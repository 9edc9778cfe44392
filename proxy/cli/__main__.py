"""`python -m wellspoken.proxy.cli` is the command `wellspoken`."""

from wellspoken.proxy.cli.main import main

raise SystemExit(main())
