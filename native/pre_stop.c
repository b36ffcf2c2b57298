/* The preStop hook of a container with a part of a GPU: pre-stop SECONDS.
 *
 * Tells the attach broker that this container is being stopped, and takes the SECONDS that the node's agent needs to end
 * the container's CUDA contexts in order, before the kubelet sends a signal that could end a client in mid-kernel. The
 * broker sees by the kernel which container it is: nothing is said but the one message.
 *
 * Guarantees: it ends SECONDS after its start, however far it got, and always with 0. Where no broker listens it tries
 * again until then, so one that was just restarted hears of it. It reads nothing of its environment, needs no library, no
 * file of the image, no user and no capability, and makes nothing.
 */
#include <asm/unistd.h>
#include <linux/poll.h>
#include <linux/socket.h>
#include <linux/time.h>
#include <linux/un.h>

#ifndef BROKER
#define BROKER "/run/gpushare/mps/control"
#endif

enum { USUAL_SECONDS = 2, MOST_SECONDS = 10, PAUSE_NS = 50 * 1000 * 1000, SECOND_NS = 1000 * 1000 * 1000 };
/* Of the kernel's ABI; its headers for programs do not have them. */
enum { AF_UNIX_ = 1, SOCK_SEQPACKET_ = 5, SOCK_NONBLOCK_ = 04000, MSG_NOSIGNAL_ = 0x4000 };

typedef long long nanoseconds;

/* See gpushare.mps.attach_protocol: `OUTBCRED` and a NUL, then Request.STOPPING. */
static const char credentials[9] = "OUTBCRED";
static const unsigned char stopping[4] = {0x01, 0x00, 0x70, 0x67};

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txorl %ebp, %ebp\n\tmovq %rsp, %rdi\n\tandq $-16, %rsp\n\tcall run\n");

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tand sp, x0, #-16\n\tb run\n");

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
#error "no system calls are known for this processor"
#endif

static nanoseconds now(void)
{
    struct timespec time = {0};

    call(__NR_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0, 0, 0, 0);
    return (nanoseconds)time.tv_sec * SECOND_NS + time.tv_nsec;
}

static void rest(nanoseconds duration)
{
    struct timespec time = {duration / SECOND_NS, duration % SECOND_NS};

    if (duration > 0)
        call(__NR_nanosleep, (long)&time, 0, 0, 0, 0, 0);
}

/* Whether there is something to read, or the other side has hung up, before the time is over. */
static int is_heard(int peer, nanoseconds until)
{
    nanoseconds left = until - now();
    struct timespec time = {left / SECOND_NS, left % SECOND_NS};
    struct pollfd wanted = {.fd = peer, .events = POLLIN};

    return left > 0 && call(__NR_ppoll, (long)&wanted, 1, (long)&time, 0, 0, 0) == 1;
}

static long say(int peer, const void *text, long size)
{
    return call(__NR_sendto, peer, (long)text, size, MSG_NOSIGNAL_, 0, 0) == size;
}

/* Whether the message has gone out. */
static int tell(nanoseconds until)
{
    static const struct sockaddr_un broker = {AF_UNIX_, BROKER};
    char greeting[64];
    int told = 0;
    int peer = (int)call(__NR_socket, AF_UNIX_, SOCK_SEQPACKET_ | SOCK_NONBLOCK_, 0, 0, 0, 0);

    if (peer < 0)
        return 0;
    if (call(__NR_connect, peer, (long)&broker, sizeof broker, 0, 0, 0) == 0 && is_heard(peer, until) &&
        call(__NR_recvfrom, peer, (long)greeting, sizeof greeting, 0, 0, 0) > 0)
        told = say(peer, credentials, sizeof credentials) && say(peer, stopping, sizeof stopping);
    call(__NR_close, peer, 0, 0, 0, 0, 0);
    return told;
}

static nanoseconds duration_of(const char *text)
{
    long seconds = 0;

    if (text == 0 || *text == '\0')
        return (nanoseconds)USUAL_SECONDS * SECOND_NS;
    for (; *text >= '0' && *text <= '9' && seconds <= MOST_SECONDS; text++)
        seconds = seconds * 10 + (*text - '0');
    if (*text != '\0')
        seconds = USUAL_SECONDS;
    return (nanoseconds)(seconds < MOST_SECONDS ? seconds : MOST_SECONDS) * SECOND_NS;
}

__attribute__((noreturn, used)) void run(const long *stack)
{
    nanoseconds began = now();
    const char *const *arguments = (const char *const *)(stack + 1);
    nanoseconds until = began + duration_of(stack[0] > 1 ? arguments[1] : 0);

    while (!tell(until) && now() < until) {
        nanoseconds left = until - now();

        rest(left < PAUSE_NS ? left : PAUSE_NS);
    }
    rest(until - now());
    for (;;)
        call(__NR_exit_group, 0, 0, 0, 0, 0, 0);
}
