# pymemcache: each of several connections stores, reads and counts; what it reads is what it stored, and no count is
# missing or done twice. Arguments: port, seconds. Prints the number of requests.
import sys
import threading
import time

from pymemcache.client.base import Client

port, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
counts, failed = [0] * 8, []


def work(me):
    try:
        client = Client(("127.0.0.1", port), timeout=25, connect_timeout=25, no_delay=True)
        client.set(f"sum{me}", "0")
        turns = 0
        while time.monotonic() < until:
            key = f"key{me}-{turns % 50}"
            value = (key * (1 + turns % 400)).encode()
            assert client.set(key, value, noreply=turns % 3 == 0)
            assert client.get(key) == value
            assert client.get_many([key, "none"]) == {key: value}
            turns += 1
            assert client.incr(f"sum{me}", 1) == turns
            counts[me] += 4
        client.quit()
    except BaseException as error:
        failed.append(f"{me} after {counts[me]}: {error!r}")


threads = [threading.Thread(target=work, args=(me,)) for me in range(len(counts))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failed:
    sys.exit("\n".join(failed))
print(sum(counts))
