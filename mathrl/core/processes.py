"""Whether a process runs."""


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; False for a zombie: it has ended, and its parent has not asked how.

    An orphan stays a zombie for as long as the machine's first process does not ask: in a container without an init,
    until the container ends.
    """
    import psutil  # 20 ms, which few commands need

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
