"""Experiments for `simbricks-run`; `python -m simbricks_softhca experiment NAME` says where one is."""
