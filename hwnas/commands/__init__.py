"""One short file a verb: build, call, write.

Beside them: ``arguments`` and ``sweep`` (what is written on the command line), ``help``,
``console`` (bars), ``watch`` (how a search stands), ``context`` (a target of a search), and how a
search ends: ``front`` for one target, ``fronts`` for several.
"""
