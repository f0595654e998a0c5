# tidy_model MODEL VERSION: a version of the model that no release needs; never the one that MODEL is a link to.
model=$1 version=$2
folder="$(dirname "$model")/.$(basename "$model").fleetctl/$version"
if [ "$(readlink -f "$model")" = "$(readlink -f "$folder")" ]; then exit 0; fi
rm -rf "$folder"
