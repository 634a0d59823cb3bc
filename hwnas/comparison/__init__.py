"""Fronts as numbers that stand in a paper: indicators, their uncertainty, tests, tables.

``reading`` gives runs, ``fronts`` what is compared of them, ``frame`` up to which reference point;
``indicators``, ``bootstrap``, ``significance``, ``attainment`` and ``tables`` work on those alone;
``summary`` puts them together, ``words`` says what they mean.
"""
