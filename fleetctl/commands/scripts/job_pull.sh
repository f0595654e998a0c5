# job_pull REFERENCE: from the registry that the reference names.
docker pull --quiet "$1"
