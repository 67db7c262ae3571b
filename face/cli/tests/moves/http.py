# Gets /1 to /N on one connection: python3 -c SCRIPT HOST PORT N. Prints the server of each response.
import http.client
import sys

host, port, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = http.client.HTTPConnection(host, port, timeout=60)
connection.connect()
ends = connection.sock.getsockname()
for number in range(1, requests + 1):
    connection.request("GET", f"/{number}")
    response = connection.getresponse()
    body = response.read().decode()
    assert (response.status, body) == (200, f"/{number}"), (number, response.status, body)
    assert connection.sock.getsockname() == ends, "the connection was opened again"
    print(response.headers["Served-By"])
