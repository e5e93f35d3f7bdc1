"""Manual pages as plain text, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.lab.corpora.roff import plain_text

PAGE = r"""'\" t
.\" a comment
.TH LS 1 2024 GNU
.de Sp
.if n .sp
dropped
..
.ie \n(.g .ds Aq \(aq
.el       .ds Aq '
.if n \{\
dropped, and
.  if t \{ this
.  \}
.\}
.SH NAME
ls \- liste \fIdes\fR fichiers
.SH DESCRIPTION
.PP
La
.B commande
.BR ls (1)
.\" another comment
liste. \" and a third
.TP
\fB\-a\fR, \fB\-\-all\fR
tout
.IP \(bu 4
point
.IP "premier" 4
texte
.TS
l l.
a	b
.TE
.nf
ligne un
  ligne deux
.fi
Voir
.UR http://example.org
ici
.UE .
.

fin"""

PLAIN = """NAME
ls - liste des fichiers
DESCRIPTION
La commande ls(1) liste.
-a, --all tout
point
premier texte
ligne un
ligne deux
Voir ici.
fin"""


def test_a_page_of_man():
    assert plain_text(PAGE) == PLAIN


def test_a_page_of_mdoc():
    page = ".Dd today\n.Sh NAME\n.Nm ls\n.Nd list\n.Sh USE\n.Bl -tag\n.It Fl a\nall"
    page += "\n.El\n.Xr cat 1 ."
    assert plain_text(page) == "NAME\nls list\nUSE\na all cat 1 ."


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"a\-b\e\(em\[lq]x\[rq]\(cq", "a-b\\—“x”’"),
        (r"\[u00E9]\[u0065_0301]\N'233'\('e\(:a\(,c\(oa", "ééééäçå"),
        (r"\s-1small\s0 \s+(10 \f(BIx\f[R]\fP \m[red]y\m[]", "small x y"),
        (r"\*(lqx\*(rq\*(Aq\*[unknown]\*R", "“x”'®"),
        (r"a\&b\|c\^d\/e\,f\:g\%h\~i\ j\0k", "abcdefgh i j k"),
        (r"\h'2'x\v'-1'\w'abc'\(zz\[u110000]\N'55555555'", "x"),
        ("x\\", "x"),
        ("'request text", ""),
        ('.SH "a ""b"" c"\nx', 'a "b" c\nx'),
        ('.B "open\nx', "open x"),
        (".ig\nno\n..\n.ig END\nno\n.END\nyes", "yes"),
        (".de XX YY\nno\n.YY\nyes", "yes"),
        (".de XX\nnever ends", ""),
        (".if n \\{\nnever ends", ""),
        ("これは\n日本語\nand English", "これは日本語 and English"),
        ("", ""),
    ],
)
def test_lines(source, text):
    assert plain_text(source) == text


@given(st.text(st.sampled_from("\\.'\"()[]{}*fsNhu0 \nSHaBIRTE")))
def test_nothing_breaks_it(source):
    plain_text(source)
