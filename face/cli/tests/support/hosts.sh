# Hosts for the blocks of the documentation. $1: a directory with the programs, for this run only.
# Runs as root in network, mount and PID namespaces of its own; everything made here goes with them.
programs=$1
export PATH=$programs:$PATH

private() {
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /dev/shm
    mkdir -p /etc/spillway /run/netns /run/spillway
    mount -t tmpfs tmpfs /etc/spillway
    mkdir "$programs/work"
    chown -R nobody "$programs" /etc/spillway /run/spillway
    chmod 755 "$programs"
    cd "$programs/work"
}

# The shell that follows is the host's.
one_host() {
    private
    ip link set lo up
    export USER=nobody HOME=$programs/work XDG_RUNTIME_DIR=$programs/work
    # memcached refuses to run as root, and nothing here needs root from now on.
    if [ "$(id -u)" = 0 ]; then
        sed '1,/^one_host$/d' "$0" >"$programs/rest.sh"
        exec setpriv --reuid nobody --clear-groups bash -u "$programs/rest.sh"
    fi
}

three_hosts() {
    private
    ip link set lo up
    ip link add bridge type bridge
    ip link set bridge up
    last=5
    for host in server helper client; do
        ip netns add "$host"
        ip link add "to-$host" type veth peer name eth0 netns "$host"
        ip link set "to-$host" master bridge up
        ip -n "$host" link set lo up
        ip -n "$host" link set eth0 up
        ip -n "$host" address add "10.0.0.$last/24" dev eth0
        last=$((last + 4))
    done
    # The server as it ran before it was adopted.
    background server "memcached -l 0.0.0.0 -p 11211"
    sleep 1
}

as_user() {
    host=$1
    shift
    ip netns exec "$host" setpriv --reuid nobody --clear-groups "$@"
}

background() {
    as_user "$1" bash -e -u -o pipefail -c "$2" &
    sleep 1
}

# on HOST: runs the commands on standard input there; those that stay in the foreground go on in the background.
on() {
    commands=$(cat)
    case $commands in
    *"spillway run "*)
        pkill -x memcached
        sleep 1
        background "$1" "$commands"
        ;;
    *"spillway helper "* | *"spillway sidecar "*) background "$1" "$commands" ;;
    *) as_user "$1" bash -e -u -o pipefail -c "$commands" ;;
    esac
}

# The same value by the server's own port, by the helper's, and by the sidecar.
check_deployment() {
    say() { as_user client bash -c "exec 3<>/dev/tcp/$1/11211; printf '$2\r\nquit\r\n' >&3; timeout 5 cat <&3"; }
    say 10.0.0.5 'set a 0 0 1\r\nx' | grep -q STORED
    for address in 10.0.0.5 10.0.0.9 127.0.0.1; do
        say "$address" 'get a' | grep -q 'VALUE a 0 1' || { echo "no value by $address"; exit 1; }
    done
    echo "the deployment answers"
}
