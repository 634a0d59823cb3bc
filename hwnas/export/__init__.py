"""From a member of a front to files that prove themselves: ``export`` and ``verify``.

``verify`` runs where torch is not installed: ``folder``, ``measuring``, ``options``, ``proof`` and
``running`` import none of it.
"""
