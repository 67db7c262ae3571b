# redis-py: connections that store, count in transactions, wait for lists and subscribe; nothing is missing or done twice.
# Arguments: port, seconds. Prints the number of requests.
import sys
import threading
import time

import redis

port, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
counts, failed = [0] * 7, []


def connected():
    return redis.Redis("127.0.0.1", port, socket_timeout=25, socket_connect_timeout=25, single_connection_client=True)


def store(me):
    client, turns = connected(), 0
    while time.monotonic() < until:
        value = f"value{turns}".encode() * (1 + turns % 400)
        assert client.set(f"key{me}", value)
        assert client.get(f"key{me}") == value
        with client.pipeline(transaction=True) as pipe:
            turns += 1
            assert pipe.incr(f"sum{me}").strlen(f"key{me}").execute() == [turns, len(value)]
        counts[me] += 4


def push(me):
    client, turns = connected(), 0
    while time.monotonic() < until:
        client.rpush("queue", turns)
        client.publish("news", turns)
        turns += 1
        counts[me] += 2
    client.rpush("queue", "end")
    client.publish("news", "end")


def pop(me):
    client, turns = connected(), 0
    while True:
        value = client.blpop("queue", timeout=20)[1]
        if value == b"end":
            return
        assert value == str(turns).encode(), (value, turns)
        turns += 1
        counts[me] += 1


subscribed = threading.Event()


def listen(me):
    news, turns = connected().pubsub(), 0
    news.subscribe("news")
    for message in news.listen():
        if message["type"] == "subscribe":
            subscribed.set()
        elif message["data"] == b"end":
            return
        else:
            assert message["data"] == str(turns).encode(), (message, turns)
            turns += 1
            counts[me] += 1


def work(me, task):
    try:
        task(me)
    except BaseException as error:
        failed.append(f"{task.__name__} after {counts[me]}: {error!r}")
        subscribed.set()


threads = [threading.Thread(target=work, args=(me, task)) for me, task in enumerate([store] * 4 + [pop, listen, push])]
for thread in threads:
    if thread is threads[-1]:
        subscribed.wait(25)
    thread.start()
for thread in threads:
    thread.join()
if failed:
    sys.exit("\n".join(failed))
print(sum(counts))
