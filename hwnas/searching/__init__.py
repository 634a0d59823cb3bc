"""The search itself, and the verification of its front.

A search: ``loop`` asks, costs, scores and tells; ``engine`` has one process do it or many
(``workers``); trials are kept by ``study``, or by ``shared_study`` where processes share them.
``targets`` makes one search of several, ``incumbent`` says when reading a candidate may stop.

Samplers: ``sampler`` makes them by name. Ours is ``pareto_sampler``: it reads trials (``history``)
as ``choices``, models what is unknown (``gaussian_process``), weighs candidates
(``expectation``, ``acquisition``) and records why it proposed one (``proposal``).

Afterwards: ``verify`` judges the front by its ``artefacts``, ``explanation`` answers ``why``.
"""
