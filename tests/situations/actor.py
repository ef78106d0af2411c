# A process that is told what to do, one JSON array a line: a verb and what it needs. Each order is answered by a line.
import ctypes, fcntl, json, mmap, os, signal, socket, sqlite3, struct, subprocess, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
connections, kept = {}, []


def connect(path, name='a', uri=False):
    connections[name] = sqlite3.connect(path, isolation_level=None, timeout=30, uri=uri, check_same_thread=False)


def sql(text, name='a'):
    return connections[name].execute(text).fetchall()


def close(name='a'):
    connections.pop(name).close()


def stray(path):
    """Opens and closes a file by ordinary means: every POSIX lock that the process has on it is gone."""
    os.close(os.open(path, os.O_RDONLY))


def keep(path, how='RDWR'):
    flags = {'RDWR': os.O_RDWR, 'RDONLY': os.O_RDONLY, 'PATH': os.O_PATH}[how]
    kept.append(os.open(path, flags))
    return kept[-1]


def lock_by_description(path):
    """SQLite's shared lock, but as one of the open file description (F_OFD_SETLK), which names no process."""
    kept.append(os.open(path, os.O_RDWR))
    fcntl.fcntl(kept[-1], 37, struct.pack('hhqqi0q', fcntl.F_RDLCK, os.SEEK_SET, 1073741826, 510, 0))


def only_a_copy(path):
    first = os.open(path, os.O_RDWR)
    kept.append(os.dup(first))
    os.close(first)


def map_and_close(path):
    # Python's own mmap keeps a duplicate of the descriptor.
    fd = os.open(path, os.O_RDWR)
    at = libc.mmap(None, os.fstat(fd).st_size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    if at in (None, 2**64 - 1):
        raise OSError(ctypes.get_errno())


def become(uid, inspectable=True):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # A process that changed its user without an exec may not be looked at by that user (prctl(2), PR_SET_DUMPABLE).
    libc.prctl(4, 1 if inspectable else 0, 0, 0, 0)


def new_user_namespace():
    """From now on it is root in a user namespace of its own, as in a rootless container."""
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), 'unshare')
    for name, text in (('uid_map', f'0 {uid} 1'), ('setgroups', 'deny'), ('gid_map', f'0 {gid} 1')):
        with open(f'/proc/self/{name}', 'w') as file:
            file.write(text)


def child(*orders):
    """A copy of this process that carries out the orders and stays. Its number is returned when it has done them."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for order in orders:
                perform(order)
            os.write(into, b'k')
        except BaseException as e:
            os.write(into, repr(e).encode())
        os.close(into)
        while True:
            signal.pause()
    os.close(into)
    said = os.read(out, 1000)
    os.close(out)
    if said != b'k':
        raise Exception(said.decode())
    return pid


def pass_on(path):
    """Hands an open descriptor to a child over a socket and closes its own. The child had nothing open before."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        socket.recv_fds(theirs, 1, 1)
        theirs.send(b'k')
        while True:
            signal.pause()
    fd = os.open(path, os.O_RDWR)
    socket.send_fds(ours, [b'x'], [fd])
    os.close(fd)
    assert ours.recv(1) == b'k'
    return pid


def crowd(processes, descriptors):
    """Children with that many descriptors each, none of them on a database."""
    return [child(['fill', descriptors]) for _ in range(processes)][-1]


def nothing():
    pass


def fill(descriptors):
    while len(os.listdir('/proc/self/fd')) - 1 < descriptors:
        kept.append(os.open('/dev/null' if len(kept) % 2 else '/etc/passwd', os.O_RDONLY))


def zombie(path):
    """A child that has the database open and dies, and nobody asks how."""
    pid = child(['connect', path, 'z'], ['sql', 'SELECT count(*) FROM m', 'z'])
    os.kill(pid, signal.SIGKILL)
    while open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0] != 'Z':
        time.sleep(0.001)
    return pid


def in_background(text, name='a'):
    threading.Thread(target=sql, args=(text, name), daemon=True).start()


def come_and_go(path):
    """Opens, reads and closes without a pause, for as long as the process lives."""
    def loop():
        while True:
            connect(path, 'loop')
            sql('SELECT count(*) FROM m', 'loop')
            close('loop')
    threading.Thread(target=loop, daemon=True).start()


def come_and_go_as_processes(path):
    """Children that open the database and end in the middle, one after the other."""
    def loop():
        while True:
            pid = os.fork()
            if pid == 0:
                connect(path, 'short')
                sql('SELECT count(*) FROM m', 'short')
                os._exit(0)
            os.waitpid(pid, 0)
    threading.Thread(target=loop, daemon=True).start()


def chroot(path, directory='/'):
    os.chroot(path)
    os.chdir(directory)


def catch_term():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def bring_back(pid):
    """The next process of this pid namespace gets this number (ns_last_pid, proc_sys_kernel(5))."""
    with open('/proc/sys/kernel/ns_last_pid', 'w') as last:
        last.write(str(pid - 1))


def run_with(settings, *command):
    """Starts a program with these environment variables, and waits until it says DONE."""
    kept.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **settings}))
    while not kept[-1].stdout.readline().endswith(b'DONE\n'):
        pass
    return kept[-1].pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def perform(order):
    verb, *rest = order
    verbs = [connect, sql, close, stray, keep, lock_by_description, only_a_copy, map_and_close, become, new_user_namespace,
             child, pass_on, crowd, nothing, fill, zombie, in_background, come_and_go, come_and_go_as_processes, chroot,
             catch_term, bring_back, run_with, kill]
    return {v.__name__: v for v in verbs}[verb](*rest)


def serve(lines):
    for line in lines:
        try:
            answer = {'ok': perform(json.loads(line))}
        except BaseException as e:
            answer = {'error': repr(e)}
        print(json.dumps(answer), flush=True)


if '--main-thread-ends' in sys.argv:
    # What goes on is another thread; the one that the process is named after is over (_exit(2) of a single thread).
    threading.Thread(target=serve, args=(sys.stdin,)).start()
    libc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
serve(sys.stdin)
