# state_ask URL: the balancer's own words about itself.
curl -s -f -m 5 "$1"
