# Flattens a JSON text into lines /path/to/0/value=TEXT. Line breaks in a text stay as \n, so that a value is one line.
function skip() { while (pos <= size && index(" \t\r\n", substr(text, pos, 1))) pos++ }
function string(   out, c) {
    out = ""
    for (pos++; pos <= size; pos++) {
        c = substr(text, pos, 1)
        if (c == "\"") { pos++; return out }
        if (c == "\\") {
            c = substr(text, ++pos, 1)
            if (index("\"/\\", c) == 0) c = "\\" c
        }
        out = out c
    }
    return out
}
function scalar(   start) {
    start = pos
    while (pos <= size && !index(",]} \t\r\n", substr(text, pos, 1))) pos++
    return substr(text, start, pos - start)
}
function object(path,   key) {
    for (pos++; pos <= size; ) {
        skip()
        if (substr(text, pos, 1) == "}") { pos++; return }
        key = string(); skip(); pos++
        element(path "/" key); skip()
        if (substr(text, pos, 1) == ",") pos++
    }
}
function array(path,   i) {
    for (pos++; pos <= size; ) {
        skip()
        if (substr(text, pos, 1) == "]") { pos++; return }
        element(path "/" i++ + 0); skip()
        if (substr(text, pos, 1) == ",") pos++
    }
}
function element(path,   c) {
    skip(); c = substr(text, pos, 1)
    if (c == "{") object(path)
    else if (c == "[") array(path)
    else if (c == "\"") print path "=" string()
    else print path "=" scalar()
}
{ text = text $0 "\n" }
END { pos = 1; size = length(text); element("") }
