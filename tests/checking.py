"""The type checker for tests: beartype, with int accepted where a float is asked for."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
