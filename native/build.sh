#!/bin/sh
# Builds both front libraries into a directory: build.sh DIRECTORY. CC, EXTRA: the compiler, and further flags.
#
# They bind to no version of a C library: their few symbols of it (dlopen, dlsym, getenv …) are undefined and unversioned, so
# they load beside any that the driver's library loads beside, however old the image is. What is linked in the place of the
# driver's library and of libdl is an empty library of that SONAME: only the names are needed.
set -eu
source=$(cd "$(dirname "$0")" && pwd)
out=$1
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

case $("${CC:-cc}" -dumpmachine) in
x86_64*) branches=-fcf-protection=full ;;
aarch64*) branches=-mbranch-protection=standard ;;
*) branches= ;;
esac

empty() { # SONAME
    : >"$scratch/empty.c"
    "${CC:-cc}" -shared -nostdlib -Wl,-soname,"$1" -o "$scratch/$1" "$scratch/empty.c"
}

front() { # SOURCE SONAME
    empty "gpushare-$2"
    # shellcheck disable=SC2086 # several flags in one word
    "${CC:-cc}" -std=c11 -O2 -fPIC -shared -Wall -Wextra -Werror -fvisibility=hidden -fstack-protector-strong \
        $branches -D_DEFAULT_SOURCE "-DDRIVER=\"gpushare-$2\"" ${EXTRA:--nostdlib -Wl,-s} \
        -Wl,-soname,"$2" -Wl,-z,relro,-z,now,-z,noexecstack,-z,nodelete -Wl,--hash-style=both -Wl,--build-id=none \
        -o "$out/$2" "$source/$1" -Wl,--no-as-needed "$scratch/gpushare-$2" "$scratch/libdl.so.2"
}

empty libdl.so.2
front cuda.c libcuda.so.1
front nvml.c libnvidia-ml.so.1
