"""The images of this repository, built with buildah on a base image of the machine's own release."""
