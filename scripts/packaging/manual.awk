# The text of `brrr VERB --help` on standard input as a man page. Variables: name, version, command.
# Help is: a usage line, a summary, paragraphs, and headings "word:" with options of two spaces, whose
# descriptions stand in a column of their own, on the same or the following lines.
function escaped(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  sub(/^[.']/, "\\\\\\&&", text)
  return text
}
function section(title) { if (now != title) { print ".SH " title; now = title } }
BEGIN { printf ".TH %s 1 \"\" \"brrr %s\" \"Brrr\"\n", toupper(name), version }
NR == 1 && /^brrr / { sub(/^[^:]*: /, ""); summary = $0; next }  # `brrr --help` begins so
/^usage: / && !usage { usage = substr($0, 8); next }
!begun && usage && !summary { summary = $0 }
!begun && usage {
  printf ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n", escaped(name), escaped(summary), escaped(usage)
  begun = 1
  now = "SYNOPSIS"
  if ($0 == summary) next
}
/^[a-z][a-zA-Z0-9 ,()=-]*:$/ {
  section("OPTIONS")
  sub(/:$/, "")
  printf ".SS %s\n", escaped($0)
  next
}
/^  [^ ]/ {  # an option, or a word and what it means
  if (now == "SYNOPSIS") section("DESCRIPTION")
  text = substr($0, 3)
  at = match(text, /  +/)
  printf ".TP\n.B %s\n", escaped(at ? substr(text, 1, at - 1) : text)
  if (at) print escaped(substr(text, at + RLENGTH))
  hanging = 1
  is_new = 0
  next
}
/^$/ { if (begun) hanging = 1; is_new = now != "SYNOPSIS"; next }  # a paragraph, if text follows
/^ +also: / { sub(/^ +/, ""); print ".br"; print escaped($0); next }
/^ +/ && hanging && !is_new { sub(/^ +/, ""); print escaped($0); next }
{
  if (now == "SYNOPSIS") section("DESCRIPTION")
  else if (hanging) print ".PP"
  hanging = is_new = 0
  print escaped($0)
}
END {
  print ".SH SEE ALSO"
  if (name == "brrr") print ".BR brrr\\-train (1), and a page brrr\\-VERB for each verb."
  else print ".BR brrr (1)"
}
