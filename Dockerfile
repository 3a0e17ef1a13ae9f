# nearfar without a Python environment of one's own. PyPI's torch brings its CUDA libraries, so one file serves both:
#
#   docker build -t nearfar .                                                                            # CUDA
#   docker build -t nearfar:cpu --build-arg TORCH=INDEX .   # CPU, some 5 GB smaller; INDEX: that of torch for CPUs
#
#   docker run --rm --gpus all --shm-size 2g -u "$(id -u)" -v "$PWD:/work" nearfar pretrain photos/ --out runs/photos
FROM python:3.12-slim

ARG TORCH=""
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ${TORCH:+--extra-index-url "$TORCH"} -c constraints.txt .

# The decoded images and downloaded weights: give these a volume to keep them.
ENV XDG_CACHE_HOME=/tmp/cache HF_HOME=/tmp/cache/huggingface
USER 1000
WORKDIR /work
ENTRYPOINT ["nearfar"]
CMD ["--help"]
