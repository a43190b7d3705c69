// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// rowsOf is a file of n rows, whose fields are functions of their number.
func rowsOf(header string, n int, row func(i int) string) string {
	var b strings.Builder
	b.WriteString(header + "\n")
	for i := range n {
		b.WriteString(row(i) + "\n")
	}
	return b.String()
}

// TestInferKinds: what becomes of a column of 30 values, and what is said of it.
func TestInferKinds(t *testing.T) {
	for _, c := range []struct {
		name  string // of the column
		value func(i int) string
		kind  string // number, category or "" for left out
		doubt string // "" for none
	}{
		{"price", func(i int) string { return fmt.Sprint(float64(i*7%30) / 4) }, "number", ""},
		{"age", func(i int) string { return fmt.Sprint(i * 7 % 30) }, "number", ""},
		{"age", func(i int) string { return []string{"", "NA", "<NA>", "nan", "3"}[i%5] }, "number", ""},
		{"item", func(i int) string { return fmt.Sprint(16777216 + i*7%30) }, "category", `would lose digits of "16777216"`},
		{"item", func(i int) string { return []string{"17725990.0", ""}[i%2] }, "category", `would lose digits of "17725990.0"`},
		{"item", func(i int) string { return fmt.Sprint(-17725990 - i) }, "category", "would lose digits"},
		{"item", func(i int) string { return "9223372036854775807" }, "category", "would lose digits"},
		{"phone", func(i int) string { return fmt.Sprint("+49151", 1000000+i*7%30) }, "category", "would lose digits"},
		{"timestamp", func(i int) string { return fmt.Sprint(964982703 - i) }, "number", `"timestamp" is taken for a number, of which 24 bits are kept`},
		{"total_amount", func(i int) string { return fmt.Sprint(20_000_001 + i*i) }, "number", "24 bits are kept"},
		{"amount", func(i int) string { return fmt.Sprint(float64(20_000_000+i) + 0.5) }, "number", ""},
		{"amount", func(i int) string { return fmt.Sprintf("%de5", 1000+i*7%30) }, "number", ""},
		{"zip", func(i int) string { return fmt.Sprintf("%05d", i*7%30) }, "category", `would lose the zeros before "00000"`},
		{"when", func(i int) string { return fmt.Sprintf("2024-01-%02d", 1+i) }, "category", "looks like dates or times"},
		{"when", func(i int) string { return fmt.Sprintf("12:%02d", i) }, "category", "looks like dates or times"},
		{"price", func(i int) string { return fmt.Sprintf("\"1,%03d\"", i) }, "category", "looks like numbers, written with separators"},
		{"price", func(i int) string { return fmt.Sprintf("\"%d,5\"", i) }, "category", "looks like numbers"},
		{"price", func(i int) string { return fmt.Sprintf("$%d", i*7%30) }, "category", "looks like numbers"},
		{"rate", func(i int) string { return fmt.Sprintf("%d%%", i*7%30) }, "category", "looks like numbers"},
		{"rate", func(i int) string { return []string{"1", "2", "?"}[i%3] }, "category", `it is a number in 20 of the first 30 rows that have it; line 4: "?" is no number`},
		{"ratio", func(i int) string { return []string{"0.5", "inf", "-Infinity"}[i%3] }, "category", "looks like numbers that are infinite"},
		{"flag", func(i int) string { return []string{"True", "False"}[i%2] }, "category", ""},
		{"colour", func(i int) string { return fmt.Sprintf("0x%x", i*7%30) }, "category", ""},
		{"n", func(i int) string { return fmt.Sprint(i) }, "number", `column "n" counts the rows`},
		{"id", func(i int) string { return fmt.Sprint(i + 1) }, "category", `column "id" counts the rows`},
		{"user_id_score", func(i int) string { return fmt.Sprint(float64(i*7%30) / 4) }, "number", `though its name is that of ids: it has such as "1.75"`},
		{"PAID", func(i int) string { return fmt.Sprint(float64(i) + 0.25) }, "number", `it has such as "0.25"`},
		{"item_id", func(i int) string { return fmt.Sprintf("1.%de+07", 1000000+i*7%30) }, "category", ""},
		{"user_id_count", func(i int) string { return fmt.Sprint(i * 7 % 30) }, "category", "if it is an amount or a time, name it"},
		{"", func(i int) string { return fmt.Sprint(i) }, "", "column 2 has no name and is left out"},
		{"", func(i int) string { return fmt.Sprint("x", i) }, "", "column 2 has no name and is left out"},
		{"", func(i int) string { return "" }, "", ""},
		{"Unnamed: 0", func(i int) string { return fmt.Sprint(i) }, "", `column "Unnamed: 0" has its name from a column without one`},
		{"note", func(i int) string { return "" }, "", `columns ["note"] have no values in the first 30 rows`},
	} {
		text := rowsOf("label,"+c.name+",x", 30, func(i int) string { return fmt.Sprintf("%d,%s,0.5", i%2, c.value(i)) })
		s, doubts, err := Infer(write(t, "a.csv", text), Format{}, "", 100)
		if err != nil {
			t.Errorf("%s, %s: %v", c.name, c.value(1), err)
			continue
		}
		want := Schema{Label: "label", Numbers: []string{"x"}, Buckets: 100}
		switch c.kind {
		case "number":
			want.Numbers = []string{c.name, "x"}
		case "category":
			want.Categories = []string{c.name}
		}
		if diff := differ(want, s); diff != "" {
			t.Errorf("%s, %s: %s", c.name, c.value(1), diff)
		}
		if told := strings.Join(doubts, "\n"); c.doubt == "" && told != "" || !strings.Contains(told, c.doubt) || len(doubts) > 1 {
			t.Errorf("%s, %s: doubts %q, want %q", c.name, c.value(1), told, c.doubt)
		}
	}
}

func TestNamesOfIDs(t *testing.T) {
	for _, name := range []string{"id", "ID", "Id", "ids", "user_id", "userId", "userID", "userIds", "user id", "USER_ID", "USERID", "userid", "movieid", "uid", "adid", "ad_id", "id_user", "ID_x", "item-id", "PassengerId", "uuid", "XYZID"} {
		if !namesIDs(name) {
			t.Errorf("%q names no ids", name)
		}
	}
	for _, name := range []string{"", "paid", "bid", "grid", "humid", "valid", "covid", "idle", "video", "identity", "Idea", "grids", "x"} {
		if namesIDs(name) {
			t.Errorf("%q names ids", name)
		}
	}
}

// TestInferLabel: which column is the label, and what is odd about it.
func TestInferLabel(t *testing.T) {
	for _, c := range []struct{ text, label, doubt string }{
		{rowsOf(",y,x", 30, func(i int) string { return fmt.Sprintf("%d,%d,0.5", i, i%2) }), "y", "column 1 has no name"},
		{rowsOf("user_id,y,x", 30, func(i int) string { return fmt.Sprintf("%d,%d,0.5", i%3, i%2) }), "user_id", "is that of ids: name the label"},
		{rowsOf("y,x", 30, func(i int) string { return "1,0.5" }), "y", `the label "y" is "1" in all of the first 30 rows`},
		{rowsOf("y,x", 30, func(i int) string { return []string{"True,1", "False,2"}[i%2] }), "y", ""},
	} {
		path := write(t, "a.csv", c.text)
		s, doubts, err := Infer(path, Format{}, "", 10)
		if told := strings.Join(doubts, "\n"); err != nil || s.Label != c.label || c.doubt == "" && told != "" || !strings.Contains(told, c.doubt) {
			t.Errorf("label %q, doubts %q, %v, want %q", s.Label, doubts, err, c.doubt)
		}
	}
	rows, err := Read(t.Context(), write(t, "a.csv", "y,x\nTrue,1\nfalse,2\nFALSE,3\ntrue,4\n"), Format{}, Schema{Label: "y", Numbers: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if d := differ([]float32{1, 0, 0, 1}, rows.All().Labels()); d != "" {
		t.Error(d)
	}
}

// TestInferIndex: a column that counts the rows by an index' name is told of few
// rows, too.
func TestInferIndex(t *testing.T) {
	for name, told := range map[string]bool{"index": true, "Idx": true, "row_id": true, "hour": false} {
		_, doubts, err := Infer(write(t, "a.csv", rowsOf("label,"+name+",x", 5, func(i int) string { return fmt.Sprintf("%d,%d,0.5", i%2, i) })), Format{}, "", 10)
		if err != nil || (len(doubts) == 1 && strings.Contains(doubts[0], "counts the rows")) != told {
			t.Errorf("%s: %q, %v", name, doubts, err)
		}
	}
}

// TestOtherFiles: what is no CSV, or one with another separator, is named.
func TestOtherFiles(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a;b;c\n1,5;2;3\n", `separated by another character than ',', by ";"`},
		{"a\tb\n1\t2\n", `separated by another character than ',', by "\t"`},
		{"PK\x03\x04xxxx", "zip archive or a spreadsheet"},
		{"PAR1xxxx", "Parquet"},
		{"\xff\xfea\x00", "UTF-16"},
		{"label,a,a\n1,2,3\n", `several columns "a"`},
		{"l\x00a\x00,\x00b\x00\n\x001\x00,\x002\x00\n\x00", "zero bytes in the first line"},
		{"label,x,y\r1,2,3\r0,5,6\r", "end with a carriage return alone"},
		{"label,gr\xf6\xdfe\n1,2\n", `a.csv:1:7: the name "gr\xf6\xdfe" is no UTF-8`},
	} {
		if _, _, err := Infer(write(t, "a.csv", c.text), Format{}, "", 10); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	// Two columns without a name, as behind a comma at the ends of lines, are none.
	if s, _, err := Infer(write(t, "a.csv", "\xef\xbb\xbflabel,x,,\n1,2,,\n"), Format{}, "", 10); err != nil || s.Label != "label" || len(s.Numbers) != 1 {
		t.Error(s, err)
	}
}

// TestLostDigits: ids among numbers, which come behind the rows that [Infer]
// sees, are told.
func TestLostDigits(t *testing.T) {
	s := Schema{Label: "label", Numbers: []string{"item", "price"}}
	rows, err := Read(t.Context(), write(t, "a.csv", "label,item,price\n1,5,20000000.5\n0,17725991,1e9\n0,17725992.0,\n"), Format{}, s)
	if err != nil {
		t.Fatal(err)
	}
	want := `2 values of column "item", such as "17725991", are whole numbers of more digits`
	if notes := rows.All().Notes(); len(notes) != 1 || !strings.Contains(notes[0], want) {
		t.Errorf("notes %q, want %q", notes, want)
	}
}

// TestRowsStay: a row that was kept does not change with the next.
func TestRowsStay(t *testing.T) {
	r, err := Open(write(t, "a.csv", "label,x,c\n1,5,a\n0,6,b\n"), Format{}, Schema{Label: "label", Numbers: []string{"x"}, Categories: []string{"c"}, Buckets: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	first, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Next()
	if err != nil || first.Label != 1 || first.Numbers[0] != 5 || second.Numbers[0] != 6 || first.Categories[0] == second.Categories[0] {
		t.Errorf("%+v, %+v, %v", first, second, err)
	}
}

// TestUnlabelled: a schema without a label reads rows that have none.
func TestUnlabelled(t *testing.T) {
	s := Schema{Numbers: []string{"x"}, Categories: []string{"c"}, Buckets: 1000}
	rows, err := Read(t.Context(), write(t, "a.csv", "c,x\na,5\nb,6\n"), Format{}, s)
	if err != nil {
		t.Fatal(err)
	}
	p := rows.All()
	if p.Len() != 2 || p.At(1).Numbers[0] != 6 || p.At(1).Categories[0] != s.Bucket([]byte("b")) || !math.IsNaN(float64(p.At(0).Label)) {
		t.Errorf("%+v", p.At(1))
	}
	b, err := Unscaled(s).Collate([]Row{p.At(0), p.At(1)})
	if err != nil || b.Rows != 2 || b.IDs[0][0] != int64(s.Bucket([]byte("a"))) {
		t.Errorf("%+v, %v", b, err)
	}
	if err := s.Validate(); err == nil {
		t.Error("a schema without a label can be learnt by")
	}
}
