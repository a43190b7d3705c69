// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// mark is what some editors put before UTF-8 text. It is no part of the text.
const byteOrderMark = "\xef\xbb\xbf"

// signatures are the beginnings of files that are not text, with what they are.
var signatures = []struct{ begin, kind, advice string }{
	{"\xff\xfe\x00\x00", "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8"},
	{"\x00\x00\xfe\xff", "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8"},
	{"\xff\xfe", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
	{"\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
	{"\x1f\x8b", "compressed by gzip", "unpack it: gunzip"},
	{"BZh", "compressed by bzip2", "unpack it: bunzip2"},
	{"\xfd7zXZ\x00", "compressed by xz", "unpack it: unxz"},
	{"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it: unzstd"},
	{"\x04\x22\x4d\x18", "compressed by lz4", "unpack it: unlz4"},
	{"PK\x03\x04", "a zip archive, such as .docx, .epub and .npz are", "give --data the text that is in it"},
	{"PK\x05\x06", "an empty zip archive", ""},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"},
	{"Rar!\x1a\x07", "a rar archive", "unpack it"},
	{"%PDF-", "a PDF document", "convert it: pdftotext"},
	{"{\\rtf", "an RTF document", "convert it to plain text"},
	{"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document", "convert it to plain text"},
	{"PAR1", "a table of records (Parquet)", recordAdvice},
	{"ARROW1", "a table of records (Arrow)", recordAdvice},
	{"ORC", "a table of records (ORC)", recordAdvice},
	{"Obj\x01", "a table of records (Avro)", recordAdvice},
	{"SQLite format 3\x00", "a SQLite database", recordAdvice},
	{"\x93NUMPY", "a NumPy array", ""},
	{"\x89HDF\r\n\x1a\n", "an HDF5 file", ""},
	{"GGUF", "weights of a model (GGUF)", ""},
	{"\x80\x02", "a Python pickle", ""},
	{"\x80\x04", "a Python pickle", ""},
	{"\x80\x05", "a Python pickle", ""},
	{"\x89PNG", "a PNG image", ""},
	{"\xff\xd8\xff", "a JPEG image", ""},
	{"GIF8", "a GIF image", ""},
	{"RIFF", "sound, video or an image", ""},
	{"ID3", "sound (MP3)", ""},
	{"OggS", "sound (Ogg)", ""},
	{"fLaC", "sound (FLAC)", ""},
	{"\x7fELF", "a program", ""},
	{"\xca\xfe\xba\xbe", "a program", ""},
	{"\xcf\xfa\xed\xfe", "a program", ""},
	{"\x00asm", "a program", ""},
}

// notText says why a file is no text, with what to do, by its beginning; "" is
// text as far as that tells. A character may be cut at its end.
func notText(f *file, head []byte) (why, advice string) {
	whole := bytes.TrimPrefix(head, []byte(byteOrderMark))
	if int64(len(head)) < f.size {
		whole = wholeRunes(whole)
	}
	at := invalidAt(whole)
	if at < 0 && !bytes.HasPrefix(head, []byte("%PDF-")) && !bytes.HasPrefix(head, []byte("{\\rtf")) && !bytes.HasPrefix(head, []byte("PAR1")) {
		return "", ""
	}
	for _, s := range signatures {
		if bytes.HasPrefix(head, []byte(s.begin)) {
			return "it is " + s.kind, s.advice
		}
	}
	switch {
	case len(head) > 262 && string(head[257:262]) == "ustar":
		return "it is a tar archive", "unpack it"
	case len(head) > 8 && string(head[4:8]) == "ftyp":
		return "it is video or an image", ""
	case zeros(head, 0)+zeros(head, 1) > 2*len(head)/3:
		return "it looks like UTF-32 text", "convert it: iconv -f UTF-32LE -t UTF-8, or UTF-32BE"
	case zeros(head, 1) > len(head)/3:
		return "it looks like UTF-16 text", "convert it: iconv -f UTF-16LE -t UTF-8"
	case zeros(head, 0) > len(head)/3:
		return "it looks like UTF-16 text", "convert it: iconv -f UTF-16BE -t UTF-8"
	}
	p := place{line: 1}
	return p.describe(whole, at), "convert it, or point --data at a file or directory of UTF-8 text"
}

// wholeRunes returns b without the beginning of a character at its end.
func wholeRunes(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// zeros counts the zero bytes at odd or at even places.
func zeros(b []byte, odd int) (n int) {
	for i := odd; i < len(b); i += 2 {
		if b[i] == 0 {
			n++
		}
	}
	return n
}

// invalidAt returns where the first byte is that is no UTF-8 or is zero, -1 if
// there is none.
func invalidAt(b []byte) int {
	zero := bytes.IndexByte(b, 0)
	if zero >= 0 {
		b = b[:zero]
	}
	if utf8.Valid(b) {
		return zero
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return zero
}

// place is how far a file has been read.
type place struct {
	line, offset int64
}

// pass goes on behind b.
func (p *place) pass(b []byte) {
	p.line += int64(bytes.Count(b, []byte{'\n'}))
	p.offset += int64(len(b))
}

// describe says what is wrong with the byte at b[i].
func (p place) describe(b []byte, i int) string {
	p.pass(b[:i])
	what := fmt.Sprintf("not valid UTF-8: 0x%02x", b[i])
	if b[i] == 0 {
		what = "a zero byte"
	}
	return fmt.Sprintf("line %d, at byte %d of the file, is %s", p.line, p.offset, what)
}

// checkText reads a file whose beginning, head, is text and says why it is none,
// "" if it is. It notes a byte order mark and what records the file has.
func (f *file) checkText(ctx context.Context, head []byte) (why string, err error) {
	if bytes.HasPrefix(head, []byte(byteOrderMark)) {
		f.mark = int64(len(byteOrderMark))
	}
	if err := f.findRecords(head); err != nil {
		return "", err
	}
	if f.size <= headSize {
		return "", nil // that was the beginning
	}
	h, err := os.Open(f.path)
	if err != nil {
		return "", unreadable(f.path, err)
	}
	defer h.Close()
	p, left := place{line: 1}, f.size
	buf := make([]byte, 256<<10)
	kept := 0 // bytes of a character that is cut off, at the beginning of buf
	for left > 0 {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := io.ReadFull(h, buf[kept:min(int64(len(buf)), left+int64(kept))])
		left -= int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", f.changed(f.size - left)
		} else if err != nil {
			return "", unreadable(f.path, err)
		}
		b := buf[:kept+n]
		whole := len(b)
		if left > 0 {
			whole = len(wholeRunes(b))
		}
		if at := invalidAt(b[:whole]); at >= 0 {
			return p.describe(b, at), nil
		}
		p.pass(b[:whole])
		kept = copy(buf, b[whole:])
	}
	return "", nil
}
