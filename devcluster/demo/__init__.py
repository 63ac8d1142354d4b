"""The whole way on real control planes, told to somebody who sees it for the first time."""
