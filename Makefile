# All of these need Go alone; race needs gcc too, and site Python. The pinned tools build themselves.
.PHONY: test race lint fmt fuzz bench cover soak site vulnerabilities ci ratios binaries rehearsal

test:
	go test work

race:
	go test -race work

lint:
	go vet work
	.ci/tool golangci-lint run --allow-parallel-runners $$(go list -m -f '{{.Dir}}/...')
	.ci/tool deadcode -test work
	.ci/tool actionlint .github/workflows/*.yml

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

# Known vulnerabilities of what the modules use. It needs the network.
vulnerabilities:
	for dir in $$(go list -m -f '{{.Dir}}'); do .ci/tool govulncheck -C "$$dir" ./... || exit 1; done

# Long forms of tests that have a short form in "make test", and those that it skips.
soak:
	MUSTER_SOAK=1 go test -timeout 60m ./bench ./clients/python ./cmd/muster ./collective ./dataparallel ./integration/... ./gather ./interop/vllm ./shm ./store ./interop/tcpstore
	MUSTER_SOAK=1 go test -v -timeout 60m -run '^(TestDamage|TestPowerLoss.*)$$' ./internal/durable
	go test -v -timeout 60m -run '^TestLinearizable$$' ./store -linear.for 5m
	MUSTER_SOAK=1 go test -v -timeout 60m -run '^TestMutants$$' ./pgroup
	MUSTER_SOAK=1 go test -v -timeout 60m -run '^(TestBusyHostLosesNoRank|TestTheCulpritIsPrintedFirst)$$' ./pgroup/pgrouptest
	MUSTER_SOAK=1 go test -v -timeout 90m -run '^(TestFaults|TestSpace|TestKilledLeader|TestSuites)$$' ./store/etcdlog
	go test -v -timeout 60m -run '^TestSimulation$$' ./store/etcdlog -sim.seeds 20000
	MUSTER_SOAK=1 go test -v -timeout 60m -run '^TestMutants$$' ./store/etcdlog
	for v in 3.5 3.6 3.7; do MUSTER_TEST_ETCD=$$(.ci/etcd $$v) go test -v -timeout 20m ./store/etcdlog || exit 1; done
	MUSTER_TEST_RANKS=2000 go test -v -timeout 60m -run '^TestManyRanks$$' ./gather
	go test -v -timeout 60m -run '^TestSimulation$$' ./internal/core -sim.seeds 100000
	go test -v -timeout 60m -run '^TestExplore$$' ./internal/core -explore.depth 13
	MUSTER_SOAK=1 go test -v -timeout 60m -run '^TestMutants$$' ./internal/core
	MUSTER_SOAK=1 go test -v -timeout 60m ./internal/hostmem
	.ci/fuzz 60s

# The documentation as a site, in the folder site: open site/index.html.
site:
	NO_MKDOCS_2_WARNING=1 $$(.ci/python site) -m mkdocs build --quiet --strict

ci:
	.ci/run

# Speed beside that of the last release, or of a commit: make ratios BASE=v0.1.0
ratios:
	.ci/ratios $(BASE)

# Make the binaries, archives and packages of a release, in dist, and publish nothing. It needs goreleaser and syft.
binaries:
	goreleaser release --snapshot --clean --skip=docker

# Install and use the release that the working tree would make.
rehearsal:
	.ci/rehearsal
