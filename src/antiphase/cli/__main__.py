"""``python -m antiphase.cli`` is ``antiphase``."""

from antiphase.cli import main

main()
