"""Waits until the machine is idle, because spinning threads suffer from any other load."""

import sys
import time

IDLE = 0.05
PATIENCE_S = 600


def busy_share():
    """Returns the share of CPU time that other programs used during half a second."""

    def read():
        numbers = [int(n) for n in open("/proc/stat").readline().split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    (total, idle), _ = read(), time.sleep(0.5)
    later_total, later_idle = read()
    return 1 - (later_idle - idle) / max(later_total - total, 1)


def wait_until_idle():
    start = time.monotonic()
    while busy_share() > IDLE:
        if time.monotonic() - start > PATIENCE_S:
            sys.exit("the machine is not idle: other programs would distort the measurement")
