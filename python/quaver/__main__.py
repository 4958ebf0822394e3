import sys

from quaver.cli import main

sys.exit(main())
