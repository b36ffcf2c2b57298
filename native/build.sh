#!/bin/sh
# Builds what containers have mounted into a directory: build.sh DIRECTORY. CC, EXTRA: the compiler with its own flags,
# and further flags.
#
# The program `pre-stop` is static and has no C library at all, so it runs in every image.
#
# The front libraries bind to no version of a C library: their few symbols of it (dlopen, dlsym, getenv …) are undefined and
# unversioned, so
# they load beside any that the driver's library loads beside, however old the image is. What is linked in the place of the
# driver's library and of libdl is an empty library of that SONAME: only the names are needed.
#
# The same compiler makes the same bytes, wherever the sources lie: no path, time or name of a machine is in them.
set -eu
source=$(cd "$(dirname "$0")" && pwd)
out=$1
: "${CC:=cc}"
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# shellcheck disable=SC2086 # a compiler and its flags in one word, here and below
case $($CC -dumpmachine) in
x86_64*) branches=-fcf-protection=full ;;
aarch64*) branches='-mbranch-protection=standard -mno-outline-atomics' ;; # those are functions of a library
*) branches= ;;
esac

empty() { # SONAME
    : >"$scratch/empty.c"
    # shellcheck disable=SC2086
    $CC -shared -nostdlib -Wl,-soname,"$1" -o "$scratch/$1" "$scratch/empty.c"
}

front() { # SOURCE SONAME [FILE]
    empty "gpushare-$2"
    # Compiled and linked apart: some compilers refuse to link with a stack protector and without a C library, though the
    # protector's own functions are the C library's as dlsym is.
    # shellcheck disable=SC2086
    $CC -std=c11 -O2 -fPIC -Wall -Wextra -Werror -fvisibility=hidden -fstack-protector-strong $branches \
        -D_DEFAULT_SOURCE "-DDRIVER=\"gpushare-$2\"" ${EXTRA:-} -c -o "$scratch/$1.o" "$source/$1"
    # shellcheck disable=SC2086
    $CC -shared ${EXTRA:--nostdlib -fno-stack-protector -Wl,-s} -Wl,-soname,"$2" \
        -Wl,-z,relro,-z,now,-z,noexecstack,-z,nodelete -Wl,--hash-style=both -Wl,--build-id=none \
        -o "$out/${3:-$2}" "$scratch/$1.o" -Wl,--no-as-needed "$scratch/gpushare-$2" "$scratch/libdl.so.2"
}

program() { # SOURCE NAME
    # shellcheck disable=SC2086
    $CC -std=gnu11 -O2 -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-stack-protector -fno-pie $branches \
        ${PROGRAM:+"$PROGRAM"} -c -o "$scratch/$1.o" "$source/$1"
    # shellcheck disable=SC2086
    $CC -static -nostdlib -no-pie -Wl,-s,-z,noexecstack,--build-id=none -o "$out/$2" "$scratch/$1.o"
}

program pre_stop.c pre-stop
empty libdl.so.2
front cuda.c libcuda.so.1
front classes.c libcuda.so.1 libcuda-classes.so.1
front nvml.c libnvidia-ml.so.1
