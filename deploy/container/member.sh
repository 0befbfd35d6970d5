#!/bin/sh
# One member of a federation in a container. At the first start it makes its node, key included, on
# its own volume, publishes the card, and waits for the agreed federation.toml; then it runs the
# node. It can be killed anywhere and started again.
#
#   MEMBER_NAME      the node's name, which must be a plain file name; its folder is
#                    STATE/MEMBER_NAME
#   MEMBER_ADDRESS   host:port where the others dial it; without it the node only dials
#   MEMBER_CLIENT    the training code, module:attribute; default client:client
#   MEMBER_PROJECT   the folder of that code; without it, a small example
#   FOUNDER          the member that makes federation.toml from all cards; without it, somebody puts
#                    initial.safetensors and then federation.toml into the node's folder
#   MEMBERS          with FOUNDER: the names of all members
#   ROUNDS           with FOUNDER: how many rounds
#   WHEN_FINISHED    stay: after the last round, stay until stopped, so that models can be exported
#
# Folders: STATE is private, PUBLIC is where this member publishes, and MEMBERS_PUBLIC/NAME is what
# member NAME has published, for this member read-only.
set -eu
umask 077

state=${STATE:-/var/lib/defl}
public=${PUBLIC:-/public}
published=${MEMBERS_PUBLIC:-/members}
name=${MEMBER_NAME:-}
node=$state/$name
card=$name.card.toml

say() { echo "$name: $*"; }

refuse() {
    say "$*" >&2
    exit 2
}

# --- The settings, before anything is made --------------------------------------------------------

wrong() { # the name may be what is wrong, so it is not printed
    echo "$*" >&2
    exit 2
}

# What `defl node init` accepts, if its card's file name is not too long either.
is_name() {
    python3 -ISc 'import os, sys
name = sys.argv[1]
sys.exit(len(name) > 64 or not name.isprintable() or len(os.fsencode(name + ".card.toml")) > 255)
' "$1"
}

[ -d "$state" ] || wrong "STATE: there is no folder $state: mount this member's volume there"
[ -w "$state" ] ||
    wrong "STATE: user $(id -u) may not write in $state: the folder must belong to that user"
[ -n "$name" ] || wrong "MEMBER_NAME is not set: the name of this member"
case $name in
*/* | .* | -*) wrong "MEMBER_NAME must be a plain file name: without /, not beginning with . or -" ;;
esac
is_name "$name" || wrong "MEMBER_NAME must have 1 to 64 printable characters and fit in a file name"
[ "$name" != example ] || [ -n "${MEMBER_PROJECT:-}" ] ||
    wrong "MEMBER_NAME cannot be example without MEMBER_PROJECT: the example has that folder"
[ -z "${FOUNDER:-}" ] || [ -n "${MEMBERS:-}" ] ||
    wrong "FOUNDER is set and MEMBERS is not: the names of all members"

# --- Words and files ------------------------------------------------------------------------------

# The shell is process 1, which no signal ends unless it is caught.
trap 'exit 143' TERM INT

# $1: what is awaited, for people; then a test, which is repeated until it holds.
await() {
    what=$1
    shift
    seconds=0
    until "$@"; do
        if [ $((seconds % 15)) -eq 0 ]; then say "waits for $what"; fi
        seconds=$((seconds + 1))
        sleep 1
    done
}

# Another member's file is read, never followed elsewhere.
is_file() { [ -f "$1" ] && [ ! -L "$1" ]; }

# Whole or not at all, whoever reads meanwhile.
publish() {
    cp "$1" "$public/.new"
    chmod 0644 "$public/.new"
    mv "$public/.new" "$public/${1##*/}"
}

# $1: another member's file, $2: where to. A link is never followed: it could lead to this member's
# own key. It is copied as a link, if its owner puts one there after the check, and then refused.
copy_of() {
    is_file "$1" || refuse "$1 is not a plain file"
    rm -f "$2"
    cp -P "$1" "$2"
    is_file "$2" || {
        rm -f "$2"
        refuse "$1 is not a plain file"
    }
}

take() {
    copy_of "$1" "$node/.new"
    mv "$node/.new" "$node/${1##*/}"
}

from() { # the folder in which member $1 publishes
    if [ "$1" = "$name" ]; then echo "$public"; else echo "$published/$1"; fi
}

have_all_cards() {
    for member in $MEMBERS; do
        is_file "$(from "$member")/$member.card.toml" || return 1
    done
}

# --- The training code, and the node with its key -------------------------------------------------

project=${MEMBER_PROJECT:-}
if [ -z "$project" ]; then
    project=$state/example
    if [ ! -d "$project" ]; then
        rm -rf "$project.new"
        mkdir "$project.new"
        defl new "$project.new/example" >/dev/null
        mv "$project.new/example" "$project"
        rmdir "$project.new"
    fi
fi
[ -d "$project" ] || refuse "there is no folder $project: mount your training code there"

if [ ! -d "$node" ]; then
    rm -rf "$state/.new" # of a first start that was killed: nothing was signed with that key
    set -- --name "$name" --client "${MEMBER_CLIENT:-client:client}" --project "$project"
    if [ -n "${MEMBER_ADDRESS:-}" ]; then
        set -- "$@" --address "$MEMBER_ADDRESS"
    else
        set -- "$@" --reach dial
    fi
    defl node init "$state/.new" "$@" >/dev/null
    mv "$state/.new" "$node"
    say "made its key, which stays in $node; its card is $node/$card"
fi

# --- What all agree on ----------------------------------------------------------------------------

if [ -d "$public" ] && ! cmp -s "$node/$card" "$public/$card"; then publish "$node/$card"; fi

if [ "${FOUNDER:-}" = "$name" ] && [ ! -f "$public/federation.toml" ]; then
    await "the cards of $MEMBERS" have_all_cards
    draft=$state/.founding
    rm -rf "$draft"
    mkdir "$draft"
    for member in $MEMBERS; do
        copy_of "$(from "$member")/$member.card.toml" "$draft/$member.card.toml"
    done
    defl federation create "$draft"/*.card.toml --model "${MEMBER_CLIENT:-client:client}" \
        --project "$project" --rounds "${ROUNDS:-20}" -o "$draft/federation.toml" >/dev/null
    publish "$draft/initial.safetensors"
    publish "$draft/federation.toml"
    rm -rf "$draft"
    say "made federation.toml from the cards of $MEMBERS"
fi

if [ ! -f "$node/federation.toml" ]; then
    if [ -n "${FOUNDER:-}" ]; then
        await "$FOUNDER's federation.toml" is_file "$(from "$FOUNDER")/federation.toml"
        take "$(from "$FOUNDER")/initial.safetensors"
        take "$(from "$FOUNDER")/federation.toml"
    else
        await "initial.safetensors and then federation.toml in $node" test -f "$node/federation.toml"
    fi
    defl node check "$node" --no-peers >"$node/.check" || {
        cat "$node/.check"
        refuse "is not ready: see the lines that begin with NO"
    }
    rm "$node/.check"
fi
say "$(defl federation show "$node/federation.toml" | sed -n 's/^fingerprint */fingerprint /p')"

# --- The node -------------------------------------------------------------------------------------

[ "${WHEN_FINISHED:-}" = stay ] || exec defl node start "$node"

stopped=
defl node start "$node" &
child=$!
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || :' TERM INT
code=0
wait "$child" || code=$?
while kill -0 "$child" 2>/dev/null; do # the signal ended the wait, not yet the node
    code=0
    wait "$child" || code=$?
done
if [ "$code" -ne 0 ] || [ -n "$stopped" ]; then exit "$code"; fi
trap 'exit 0' TERM INT
say "has finished; its models can be exported: defl export $node model.npz"
while :; do sleep 1; done
