// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"
)

const (
	inferRows = 10_000 // that [Infer] looks at
	manyRows  = 20     // of which something can be said about a column as a whole
)

// Infer proposes a schema for a file or directory from its first rows. Columns of
// which every value is a number or missing are numbers, except
//
//   - those whose names say that they are ids ("id", "user_id", "userIds"), unless
//     they have fractions,
//   - those of whole numbers beyond 2²⁴, whose digits a number would lose, unless
//     their names say that they are times or amounts ("timestamp"), and
//   - those with zeros before whole numbers, as codes have them.
//
// These and the others are categories. The label is the column of that name, or
// else the first that has one. Columns that are empty in all of the rows are left
// out, and so is one without a name or called "Unnamed: 0", for that is pandas'
// index. doubts are sentences about what a person should look at: columns that
// were left out, names of columns that are numbers, and columns that are, or
// would be, other than they look.
func Infer(path string, f Format, label string, buckets int) (s Schema, doubts []string, err error) {
	files, err := open(path, f)
	if err != nil {
		return Schema{}, nil, err
	}
	defer files.Close()
	if err := files.advance(); err != nil {
		return Schema{}, nil, err
	}
	p := proposal{files: files, names: slices.Clone(files.names), schema: Schema{Label: label, Buckets: buckets}}
	if err := p.checkNames(f); err != nil {
		return Schema{}, nil, err
	}
	if err := p.chooseLabel(); err != nil {
		return Schema{}, nil, err
	}
	columns, rows, err := p.readColumns(f)
	if err != nil {
		return Schema{}, nil, err
	}
	p.judge(columns, rows)
	return p.schema, p.doubts, p.schema.Validate()
}

// proposal is a schema that is being inferred.
type proposal struct {
	files  *files
	names  []string // of the columns
	schema Schema
	doubts []string
}

func (p *proposal) doubt(format string, args ...any) {
	p.doubts = append(p.doubts, fmt.Sprintf(format, args...))
}

// fail returns an error about the first line.
func (p *proposal) fail(format string, args ...any) error {
	return &RowError{Path: p.files.text.path, Line: 1, Detail: fmt.Sprintf(format, args...)}
}

// checkNames looks at the names that the first line gives the columns.
func (p *proposal) checkNames(f Format) error {
	if len(p.names) == 1 {
		return p.files.oneColumn()
	}
	number := func(name string) bool { _, problem := parseNumber([]byte(name)); return problem == "" }
	if i := slices.IndexFunc(p.names, number); i >= 0 && !f.NoHeader {
		p.doubt("the first line of %s names a column %q: is it a row, of a file without a header?", p.files.text.path, p.names[i])
	}
	for i, name := range p.names {
		if name != "" && slices.Contains(p.names[:i], name) {
			return p.fail("there are several columns %q: rename all but one", name)
		}
	}
	return nil
}

// chooseLabel chooses the column of labels, unless the caller has.
func (p *proposal) chooseLabel() error {
	label := &p.schema.Label
	switch {
	case *label == "" && slices.Contains(p.names, "label"):
		*label = "label"
	case *label == "":
		i := slices.IndexFunc(p.names, func(name string) bool { return !isIndex(name) })
		if i < 0 {
			return p.fail("no column has a name")
		}
		if *label = p.names[i]; namesIDs(*label) {
			p.doubt("the first column, %q, is taken for the label, though its name is that of ids: name the label", *label)
		}
	case !slices.Contains(p.names, *label):
		return p.files.noColumn(*label)
	}
	return nil
}

// readColumns looks at the first rows.
func (p *proposal) readColumns(f Format) (columns []column, rows int, err error) {
	columns = make([]column, len(p.names))
	for ; rows < inferRows; rows++ {
		if err := p.files.record(); err == io.EOF {
			break
		} else if err != nil {
			return nil, 0, err
		}
		for i := range columns {
			if value := p.files.text.field(i); f.isMissing(value) {
				columns[i].missing++
			} else {
				columns[i].add(value, p.files.text.fields[i].line)
			}
		}
	}
	return columns, rows, nil
}

// judge puts the columns into the schema by what the rows have in them.
func (p *proposal) judge(columns []column, rows int) {
	var empty []string
	for i, name := range p.names {
		switch c := &columns[i]; {
		case name == p.schema.Label:
			if c.filled >= manyRows && c.same {
				p.doubt("the label %q is %s in all of the first %d rows", name, quote(c.first), rows)
			}
		case isIndex(name) && c.filled > 0:
			what := fmt.Sprintf("column %d has no name", i+1)
			if name != "" {
				what = fmt.Sprintf("column %q has its name from a column without one", name)
			}
			p.doubt("%s and is left out, as the index that pandas writes: give it a name if it is more", what)
		case isIndex(name):
		case c.filled == 0:
			empty = append(empty, name)
		default:
			p.judgeColumn(name, c)
		}
	}
	if len(empty) > 0 && rows >= manyRows {
		p.doubt("columns %q have no values in the first %d rows and are left out", empty, rows)
	}
}

// judgeColumn decides whether a column with values is numbers or categories.
func (p *proposal) judgeColumn(name string, c *column) {
	category, doubt := c.judge(name)
	if doubt != "" {
		p.doubt("column %q is taken for a %s", name, doubt)
	}
	if c.counts && c.missing == 0 && (c.filled >= manyRows || c.filled > 2 && namesIndex(name)) {
		p.doubt("column %q counts the rows: if it is an index, leave it out", name)
	}
	if category {
		p.schema.Categories = append(p.schema.Categories, name)
	} else {
		p.schema.Numbers = append(p.schema.Numbers, name)
	}
}

// oneColumn is the error of a file whose first line is one field.
func (f *files) oneColumn() error {
	advice := "are fields separated by another character than " + fmt.Sprintf("%q?", f.text.comma)
	for _, c := range []string{";", "\t", "|", ","} {
		if n := strings.Count(f.names[0], c); n > 0 && c != string(f.text.comma) {
			advice = fmt.Sprintf("its fields seem to be separated by another character than %q, by %q", f.text.comma, c)
			break
		}
	}
	return &RowError{Path: f.text.path, Line: 1, Detail: fmt.Sprintf("there is one column, %q: %s", f.names[0], advice)}
}

// isIndex says whether a column's name is none, or what pandas calls such a
// column when it reads it.
func isIndex(name string) bool {
	return name == "" || strings.HasPrefix(name, "Unnamed: ")
}

// namesIndex says whether a column's name is one that indices have.
func namesIndex(name string) bool {
	switch strings.ToLower(name) {
	case "index", "idx", "level_0", "row", "rows", "rownum", "row_number", "rowid", "row_id", "no", "nr", "#":
		return true
	}
	return false
}

// column is what was seen of a column.
type column struct {
	filled, missing int
	words           int    // values that are no numbers
	word            string // the first of them, with its line
	like            map[string]int
	fractions       int    // not written as whole numbers
	parts           string // the first that is none, however it is written
	large, padded   int    // whole numbers beyond what a number keeps, and with zeros before them
	largest, pad    string // the first of them
	counts          bool   // each value is one more than the last
	last            int64
	first           []byte
	same            bool
}

// add takes a value that is not missing.
func (c *column) add(value []byte, line int) {
	c.filled++
	if c.filled == 1 {
		c.first, c.same, c.counts = bytes.Clone(value), true, true
	}
	c.same = c.same && bytes.Equal(value, c.first)
	v, problem := parseNumber(value)
	if problem != "" {
		c.counts = false
		if c.words++; c.words == 1 {
			c.word = fmt.Sprintf("line %d: %s", line, problem)
		}
		if like := looksLike(value); like != "" {
			if c.like == nil {
				c.like = map[string]int{}
			}
			c.like[like]++
		}
		return
	}
	if !isWhole(value) {
		c.counts = false
		c.fractions++
		if c.parts == "" && float64(v) != math.Trunc(float64(v)) {
			c.parts = quote(bytes.TrimSpace(value))
		}
		return
	}
	if v >= exactWhole || v <= -exactWhole {
		if c.large++; c.large == 1 {
			c.largest = quote(bytes.TrimSpace(value))
		}
	}
	if digits := bytes.TrimSpace(value); len(digits) > 1 && digits[0] == '0' && !bytes.Contains(digits, []byte(".")) {
		if c.padded++; c.padded == 1 {
			c.pad = quote(digits)
		}
	}
	n := int64(v)
	c.counts = c.counts && (c.filled == 1 && (n == 0 || n == 1) || n == c.last+1) && n < exactWhole
	c.last = n
}

// judge says whether the column is a category, and what there is to doubt about
// that.
func (c *column) judge(name string) (category bool, doubt string) {
	numbers := c.filled - c.words
	switch {
	case namesIDs(name) && c.words == 0 && c.parts != "":
		return false, fmt.Sprintf("number, though its name is that of ids: it has such as %s, which are none", c.parts)
	case namesIDs(name) && namesQuantity(name):
		return true, "category, for its name has that of ids; if it is an amount or a time, name it among the numbers"
	case namesIDs(name):
		return true, ""
	case c.words > 0 && 2*c.words < c.filled:
		return true, fmt.Sprintf("category, though it is a number in %d of the first %d rows that have it; %s", numbers, c.filled, c.word)
	case c.words > 0:
		for _, like := range []string{likeNumber, likeDate, likeInfinity} {
			if n := c.like[like]; 2*n > c.filled || like == likeInfinity && n == c.words {
				return true, fmt.Sprintf("category, though it looks like %s; %s", like, c.word)
			}
		}
		return true, ""
	case c.large > 0 && c.fractions == 0:
		if namesQuantity(name) {
			return false, fmt.Sprintf("number, of which 24 bits are kept: the first 7 digits of such as %s", c.largest)
		}
		return true, fmt.Sprintf("category, for a number would lose digits of %s, as ids have them; if it is an amount or a time, name it among the numbers", c.largest)
	case c.padded > 0:
		return true, fmt.Sprintf("category, for a number would lose the zeros before %s", c.pad)
	}
	return false, ""
}

const (
	likeNumber   = "numbers, written with separators or units"
	likeDate     = "dates or times"
	likeInfinity = "numbers that are infinite, as quotients by zero are"
)

// looksLike says what a value that is no number looks like, "" for words.
func looksLike(value []byte) string {
	switch strings.ToLower(strings.TrimLeft(strings.TrimSpace(string(value)), "+-")) {
	case "inf", "infinity":
		return likeInfinity
	}
	var digits, marks, dates int
	for _, r := range strings.TrimSpace(string(value)) {
		switch {
		case r >= '0' && r <= '9':
			digits++
		case r == ':':
			dates += 2
		case strings.ContainsRune("-/TZ", r):
			dates++
		case strings.ContainsRune(".,' _%+()", r), unicode.Is(unicode.Sc, r), unicode.IsSpace(r):
			marks++
		default:
			return ""
		}
	}
	switch {
	case digits >= 3 && dates >= 2:
		return likeDate
	case digits > 0 && marks > 0 && dates <= 1:
		return likeNumber
	}
	return ""
}

// namesIDs says whether a column's name says that it holds ids: one of its words
// is, or it ends in id behind a word that has ids.
func namesIDs(name string) bool {
	for _, word := range wordsOf(name) {
		switch word {
		case "id", "ids", "guid", "uuid", "guids", "uuids":
			return true
		}
		stem, ok := strings.CutSuffix(strings.TrimSuffix(word, "s"), "id")
		if ok && slices.Contains(haveIDs, stem) {
			return true
		}
	}
	return strings.HasSuffix(name, "ID") // all in capitals
}

// namesQuantity says whether a column's name says that it holds times or amounts,
// of which the first digits are what counts.
func namesQuantity(name string) bool {
	return slices.ContainsFunc(wordsOf(name), func(word string) bool { return slices.Contains(quantities, word) })
}

var quantities = []string{
	"time", "times", "timestamp", "timestamps", "ts", "unixtime", "epoch", "date", "datetime", "age", "duration", "seconds", "ms", "ns",
	"price", "amount", "cost", "revenue", "salary", "income", "budget", "balance", "sales", "value", "total", "sum", "population", "area", "distance",
	"size", "bytes", "length", "views", "clicks", "likes", "followers", "count", "counts",
}

// haveIDs are words and letters before "id" with which it means one, unlike in
// paid, grid or humid.
var haveIDs = []string{
	"a", "c", "g", "o", "p", "s", "t", "u", "x", "ad", "account", "app", "article", "author", "banner", "book", "brand", "business", "campaign", "category",
	"city", "client", "cookie", "creative", "customer", "device", "doc", "document", "domain", "event", "game", "group", "host", "hotel", "image", "item", "job",
	"listing", "movie", "news", "object", "order", "page", "parent", "post", "product", "publisher", "query", "record", "region", "row", "seller", "session",
	"shop", "site", "song", "store", "tag", "task", "track", "trip", "tweet", "user", "vehicle", "vendor", "video", "visitor", "zone",
}

// wordsOf parts a name into its words, in small letters: at what is no letter or
// digit, and where a capital follows a small letter.
func wordsOf(name string) (words []string) {
	var word []rune
	end := func() {
		if len(word) > 0 {
			words = append(words, strings.ToLower(string(word)))
		}
		word = word[:0]
	}
	small := false
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			end()
			small = false
			continue
		}
		if unicode.IsUpper(r) && small {
			end()
		}
		small = unicode.IsLower(r)
		word = append(word, r)
	}
	end()
	return words
}
