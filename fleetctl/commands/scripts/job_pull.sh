# job_pull REFERENCE RECORD [DIGEST]: from the registry that the reference names; with DIGEST that content, whatever the tag
# leads to by now. RECORD gets a note of it.
reference=$1 record=$2 digest=${3:-}
if [ -z "$digest" ]; then
	docker pull --quiet "$reference"
else
	case ${reference##*/} in
	*:*) name=${reference%:*} ;;
	*) name=$reference ;;
	esac
	docker pull --quiet "$name@$digest"
	docker tag "$name@$digest" "$reference"
fi
brought "$record" "$reference"
