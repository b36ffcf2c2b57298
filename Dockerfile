# Two images from one distribution: `operator` is every part of the control plane and of the node, `workload` the
# programs that use a GPU. Any base with Python >= 3.11, venv and glibc will do (slim Python, Debian, Ubuntu).
#
#   docker build --target operator -t gpushare-operator .
#   docker build --target workload --build-arg CUPY=cupy-cuda13x -t gpushare-workload .
#   docker build --target workload-torch -t gpushare-workload-torch .     # the scenario ddp: 5 GB more
#
# Nothing is installed but from locks with hashes, the C compiler included; the base is one image, by its digest.
# pip takes its settings from the builder: mount a pip.conf at /etc/pip.conf where a mirror or certificates are needed.

ARG BASE=python:3.13.15-slim-bookworm@sha256:ed86c82274b3c69b52fb5820f358f0bd7df0b603332063cb5c6e32bd220c3e6e

FROM ${BASE} AS base
ENV PATH=/opt/gpushare/bin:/opt/gpushare/driver/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A name for the workloads' user.
RUN echo 'gpushare:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'gpushare:x:65532:' >> /etc/group

# The code: changes often, so it is installed apart from what it depends on.
FROM base AS code
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
RUN python3 -m venv /opt/gpushare
COPY requirements/build.lock /src/requirements/build.lock
RUN pip install --require-hashes --no-deps -r /src/requirements/build.lock
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY workload /src/workload
# Compiled once and never checked against the source again: nobody edits an image, and every start is quicker.
# The simulated programs name their interpreter without `env`, which the operator's image has not.
RUN pip install --no-deps --no-build-isolation --no-index --root /code /src && \
    sed -i '1s|^#!/usr/bin/env -S python3 .*|#!/opt/gpushare/bin/python3 -SEs|' \
        /code/opt/gpushare/lib/python3*/site-packages/gpushare/simulation/bin/* && \
    python3 -m compileall -q -s /code -p / --invalidation-mode unchecked-hash /code

# In front of the driver's libraries in clients' containers, where a share says so. The compiler is a package of a lock, so
# from the same sources come the same bytes; the target is named, else it would be the processor that builds.
FROM base AS native
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
RUN python3 -m venv /opt/gpushare
COPY requirements/native.lock /src/native.lock
RUN pip install --require-hashes --no-deps --only-binary :all: -r /src/native.lock
COPY native /src/native
RUN CC="python3 -m ziglang cc -target $(uname -m)-linux-musl" /src/native/build.sh /out

FROM base AS operator-dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
RUN python3 -m venv /opt/gpushare
COPY requirements/operator.lock release/slim.py /src/
RUN pip install --require-hashes --no-deps --only-binary :all: -r /src/operator.lock && \
    pip uninstall --yes --quiet pip setuptools && \
    python3 /src/slim.py packages /opt/gpushare && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/gpushare

FROM base AS workload-dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
# Empty: without CuPy, for machines without a GPU. Otherwise the name of a lock: cupy-cuda12x or cupy-cuda13x.
ARG CUPY=cupy-cuda12x
RUN python3 -m venv /opt/gpushare
COPY requirements/workload.lock requirements/cupy-cuda12x.lock requirements/cupy-cuda13x.lock /src/
RUN pip install --require-hashes --no-deps --only-binary :all: -r "/src/${CUPY:-workload}.lock" && \
    pip uninstall --yes --quiet pip setuptools && \
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/gpushare

# The base without what only builds need: package managers, pip, Perl, translations (release/slim.py). The driver's
# libraries and programs are bound into these folders when a container starts; they must exist, since the root file system
# is read-only then.
FROM base AS slim
COPY release/slim.py /src/slim.py
RUN python3 /src/slim.py system && rm -r /src && mkdir -p /opt/gpushare/driver/bin /usr/lib/x86_64-linux-gnu

# Nor a shell and its programs, for what runs with rights in the cluster or on a node.
FROM base AS slim-operator
# A name for the operator's user, which gpushare/process/users.py has: kopf asks for it.
RUN echo 'gpushare-operator:x:2100000001:2100000001::/tmp:/usr/sbin/nologin' >> /etc/passwd
COPY release/slim.py /src/slim.py
RUN python3 /src/slim.py system --without-shell && \
    python3 -c 'import os, shutil; shutil.rmtree("/src"); os.makedirs("/opt/gpushare/driver/bin", exist_ok=True); os.makedirs("/usr/lib/x86_64-linux-gnu", exist_ok=True)'

# One layer: what the step above removed is gone from the image too.
FROM scratch AS runtime
COPY --from=slim / /
ENV PATH=/opt/gpushare/bin:/opt/gpushare/driver/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

FROM scratch AS operator
COPY --from=slim-operator / /
ENV PATH=/opt/gpushare/bin:/opt/gpushare/driver/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Otherwise glibc lets one large answer of the API server raise both to its size, and from then on keeps what such
# answers leave: 10 MiB in each agent. And it would give each thread a heap of its own: 1.3 MiB with 4 threads. Python's
# threads run one at a time, and its small objects are in no heap of glibc's.
ENV MALLOC_MMAP_THRESHOLD_=65536 \
    MALLOC_TRIM_THRESHOLD_=131072 \
    MALLOC_ARENA_MAX=1
# Otherwise aiohttp, when it is imported, reads all authorities of the system, which takes 2 MiB and 0.1 s of each process.
# Nobody here asks by them, and OpenSSL would find them one by one in its directory all the same.
ENV SSL_CERT_FILE=/dev/null
COPY --from=operator-dependencies /opt/gpushare /opt/gpushare
COPY --from=native /out /opt/gpushare/lib/gpushare
COPY --from=code /code /
LABEL org.opencontainers.image.title="gpushare-operator" \
      org.opencontainers.image.description="Shares NVIDIA GPUs between Kubernetes pods through MPS" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 2100000001:2100000001
ENTRYPOINT ["gpushare"]

FROM runtime AS workload
ENV CUPY_CACHE_DIR=/tmp/cupy
COPY --from=workload-dependencies /opt/gpushare /opt/gpushare
COPY --from=code /code /
LABEL org.opencontainers.image.title="gpushare-workload" \
      org.opencontainers.image.description="Programs that use a shared GPU in every way worth comparing" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
ENTRYPOINT ["gpushare-workload"]

# PyTorch with its own CUDA 13 and NCCL, for the scenario ddp. Needs a driver of release 580 or later.
FROM base AS workload-torch-dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
RUN python3 -m venv /opt/gpushare
COPY requirements/torch.lock /src/torch.lock
RUN pip install --require-hashes --no-deps --only-binary :all: -r /src/torch.lock && \
    pip uninstall --yes --quiet pip

FROM runtime AS workload-torch
COPY --from=workload-torch-dependencies /opt/gpushare /opt/gpushare
COPY --from=code /code /
LABEL org.opencontainers.image.title="gpushare-workload-torch" \
      org.opencontainers.image.description="The scenario of PyTorch's distributed data parallel" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
ENTRYPOINT ["gpushare-workload"]
