#!/usr/bin/env python3
"""Builds the tiny guest image from a checkout: ``images/tiny/build.py OUTDIR`` (no installation needed)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from unstuck.host.tinyimage import main

sys.exit(main())
