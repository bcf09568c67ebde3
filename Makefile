# All of these need Go alone; race needs gcc too. The pinned tools build themselves.
.PHONY: test race lint fmt fuzz bench cover ci

test:
	go test work

race:
	go test -race work

lint:
	go vet work
	.ci/tool golangci-lint run $$(go list -m -f '{{.Dir}}/...')
	.ci/tool deadcode -test work

fmt:
	go fix work
	.ci/tool gofumpt -w .

fuzz:
	.ci/fuzz 30s

# Compare two runs: make bench >old; (change something); make bench >new; .ci/tool benchstat old new
bench:
	@go test -run '^$$' -bench . -benchmem -count 6 work

cover:
	go test -coverprofile cover.out work
	go tool cover -html cover.out -o cover.html

ci:
	.ci/run
