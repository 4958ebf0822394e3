"""Cuts opticks.txt out of the text of Newton's Opticks that Debian ships for the tests of Go.

    apt-get download golang-1.19-src && dpkg-deb -x golang-1.19-src_*.deb unpacked
    python cut_opticks.py unpacked/usr/share/go-1.19/src/testdata/Isaac.Newton-Opticks.txt

The text is the fourth edition of 1730, digitised by Distributed Proofreaders: public domain. The cut is Queries 1 to 24
of the third book, unchanged, about 5,800 tokens for Gemma.
"""

import hashlib
import sys
from pathlib import Path

SOURCE_SHA256 = "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd"

source = Path(sys.argv[1]).read_bytes()
if hashlib.sha256(source).hexdigest() != SOURCE_SHA256:
    sys.exit(f"{sys.argv[1]}: not the text this script was written for")
text = source.decode()
cut = text[text.index("_Query_ 1.") : text.index("_Qu._ 25.")].rstrip() + "\n"
(Path(__file__).parent / "opticks.txt").write_text(cut)
