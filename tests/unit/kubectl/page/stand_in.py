"""A stand-in for kubectl: its proxy answers each request with an empty list, as in an empty cluster."""

import sys
from pathlib import Path

SCRIPT = """#!{python}
import socket, sys
open({asked!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] != "proxy":
    sys.exit("error: current-context is not set")
path = next(word.partition("=")[2] for word in sys.argv if word.startswith("--unix-socket="))
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(50)
print("Starting to serve on", path, flush=True)
kept = []
while True:
    one, _ = server.accept()
    asked = one.recv(9999)
    body = b'{{"metadata": {{"resourceVersion": "1"}}, "items": []}}'
    if b"watch=true" in asked:
        one.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
        kept.append(one)
    else:
        one.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
        one.close()
"""


def kubectl_for_nobody(folder: Path) -> Path:
    """The program; what it was run with is in `folder`/asked."""
    program = folder / "kubectl"
    program.write_text(SCRIPT.format(python=sys.executable, asked=str(folder / "asked")))
    program.chmod(0o755)
    return program
