"""What the simulator has found in the code, with the number that the schedule had then.

The numbers mean other schedules once the simulator draws differently; each finding is kept from coming back by a direct
check (`checks.py`) or a test of its own. These schedules are run by CI all the same.
"""

from __future__ import annotations

FOUND: dict[int, str] = {
    342: "an update on top of a creation that was just counted is counted twice, and the master covered the double",
    1265: "a limit was lowered; what was deleted afterwards was admitted again on two seeds before it was recalled",
    159_521: "a count whose outcome was not known arrived late and undid a later one that had found nothing to write",
    1_016_483: "a report arrived late, after a later one; a new master saw it first and covered what was given back",
    2_012_092: "the master, restored twice to one backup, did not see that his ledger had another life in between",
    5_188_127: "a late report of before a restore had the number of the last one, and nobody wrote over it",
    5_530_100: "who led first after a restore had not fenced all accounts when he ended, and his successor fenced none",
    6_007_150: "a seed that was restored twice asked with numbers that were answered: old answers refused it",
    6_034_766: "a late answer refused by what was deleted meanwhile, while the next ask was written",
    6_036_053: "a loan was written after the count that saw its older Machine gone, and kept surge without one",
    1_000_000_369: "a creation repeated through another replica lost its reservation when the repeat was given up",
    1_000_000_029: "... and within one replica, when the first call's write was late",
}
