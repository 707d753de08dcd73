"""``tcgemm tune``: find faster configurations of a backend's rungs on this GPU, and keep them.

A backend can be tuned whose folder has the modules ``candidates`` (RUNGS and candidates), ``plans``
(DIVIDING, divide, transposed, forget) and ``tables`` (read, check, user_path), as those of
triton_kernels and cuda_ref. For each problem the candidates of every rung are compiled in threads
where the settings are part of the code, those that spill are dropped, the rest are verified by both
checks of ``accuracy``, and what is right is ranked by its time beside that of the present choice,
launch for launch in turns. The fastest are timed again. What beats the present choice every time
becomes rows of the user's own table, which comes first from then on. Imports no torch until it
runs.
"""
