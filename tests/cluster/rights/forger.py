"""A container's process that speaks under another one's PID. The text runs in a pod, and has nothing but Python there.

Whoever has CAP_SYS_ADMIN in the user namespace of its PID namespace may send any PID of it (SCM_CREDENTIALS, unix(7)).
So a helper makes both namespaces, and sends what it is handed; the client itself stays in the container's, since CUDA
starts nowhere without a /proc of its own PID namespace (error 304), and none may be mounted in a pod.
"""

FORGER = '''
def start_forger():
    """A socket: a message with a socket's descriptor (and others, to pass on) is sent from there under another PID, and
    the answer is how much was sent, or a negative errno. OSError: this kernel or runtime lets nobody do that."""
    import array, ctypes, os, socket, struct, subprocess, sys
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    said, saying = os.pipe()
    uid, gid = os.getuid(), os.getgid()
    def write(name, text):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    def prepare():
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x10000000 | 0x20000000):  # CLONE_NEWUSER | CLONE_NEWPID
            raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
        write("setgroups", "deny")
        write("uid_map", f"{uid} {uid} 1")
        write("gid_map", f"{gid} {gid} 1")
        if os.fork():
            os._exit(0)
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid
    def serve(named):
        while True:
            data, numbers, _, _ = socket.recv_fds(theirs, 65536, 16)
            if not numbers:
                os._exit(0)
            control = [(socket.SOL_SOCKET, 2, struct.pack("3i", named, uid, gid))]  # SCM_CREDENTIALS
            if numbers[1:]:
                control.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers[1:])))
            with socket.socket(fileno=os.dup(numbers[0])) as sock:
                try:
                    sent = sock.sendmsg([data], control)
                except OSError as error:
                    sent = -error.errno
            for number in numbers:
                os.close(number)
            theirs.send(struct.pack("i", sent))
    if not os.fork():
        ours.close()
        try:
            named = prepare()
            os.write(saying, b" ")
        except OSError as error:
            os.write(saying, str(error).encode())
            os._exit(1)
        serve(named)
    theirs.close()
    os.close(saying)
    why = os.read(said, 512).decode().strip()
    if why:
        raise OSError(why)
    return ours
'''
