// Prints quantity_golden.tsv: what Kubernetes itself makes of many texts. Columns: the text in JSON, then either
// "error", or the format, the canonical text and the exact amount in billionths. To write the table anew:
//
//	mkdir golden && cp quantity_golden.go golden/main.go && cd golden
//	go mod init golden && go get k8s.io/apimachinery@v0.34.4 && go run . > ../quantity_golden.tsv
package main

import (
	"encoding/json"
	"fmt"
	"math/big"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	numbers := []string{
		"0", "00", "1", "5", "7", "10", "100", "500", "999", "0.5", ".5", "5.", "1.5", "0.001", "0.0001", "1.0001", "007", "1.500",
	}
	large := []string{
		"1000", "1001", "1023", "1024", "1025", "1500", "1536", "2048", "4096", "8000", "64000", "1000000", "1048576", "1234567",
		"0.125", "0.000001", "0.000000001", "0.0000000001", "1.0000000001", "1.9999999999", "0.00097656250", "123.456789",
	}
	for _, sign := range []string{"", "+", "-"} {
		for _, number := range numbers {
			for _, suffix := range []string{"", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi"} {
				show(sign + number + suffix)
			}
		}
		for _, number := range large {
			for _, suffix := range []string{"", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"} {
				show(sign + number + suffix)
			}
		}
		for _, number := range []string{"0", "1", "10", "1000", "1.5", ".25", "5.", "123456"} {
			for _, exponent := range []string{"e0", "e1", "e3", "E3", "e+3", "e-3", "E-6", "e-9", "e-10", "e06", "e12", "E18", "e21", "e29"} {
				show(sign + number + exponent)
			}
		}
	}
	for _, text := range []string{
		"1Ei", "7Ei", "7.5Ei", "0.0001Ei", "-7Ei", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551616",
		"123456789012345678901234567890", "0.1234567890123", "999999999999999999n", "1000000000000000000n", "8191Pi", "9007199254740993",
		"0.1e-8", "0.1e-9", "1e-30", "-1e-30", "1e-99", "1E", "1Ek", "1EE", "1e", "1E+", "1e-", "1e1.5", "1ee3", "1e3e3", "1e3Ki", "1e3k",
		"", " ", " 1", "1 ", "1\n", "1 Gi", "1_000", "1,5", "1..5", "1.5.0", "--1", "+-1", "-+1", "1-", "1+", "0x10", "1K", "1ki", "1kI", "1KI", "1gi", "1g",
		"1mi", "1GiB", "1GB", "1Kii", "1i", "1iK", "1mm", "1nn", "1U", "1N", "1µ", "１", "١", "abc", "NaN", "Infinity", "null", "true", "64x", "1ni", "1Zi", "1Y", "e3x", "x1",
		// Where common/quantity.py differs on purpose:
		"+", "-", ".", "-.", "Ki", "m", "E", "e3", ".Gi", "8Ei", "16Ei", "9223372036854775807Ki", "1000E", "1000000000000000000000", "-5000E",
		"1e100", "-1e-100", "1e36",
	} {
		show(text)
	}
}

func show(text string) {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		fmt.Printf("%s\terror\n", quoted)
		return
	}
	// Not String(): it returns some texts as they were written.
	number, suffix := parsed.CanonicalizeBytes(nil)
	exact := new(big.Rat)
	if _, ok := exact.SetString(parsed.AsDec().String()); !ok {
		panic(text)
	}
	exact.Mul(exact, big.NewRat(1_000_000_000, 1))
	if !exact.IsInt() {
		panic(text)
	}
	fmt.Printf("%s\t%s\t%s%s\t%s\n", quoted, parsed.Format, number, suffix, exact.Num())
}
