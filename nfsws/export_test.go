package nfsws

type (
	Volume = volume
	File   = file
)

const (
	PartBytes   = partBytes
	MaxManifest = maxManifest
	StaleTime   = staleTime
)

// On returns o with another volume than the operating system's.
func (o Options) On(v Volume) *Options {
	o.volume = v
	return &o
}

// ManifestName and WeightsName are the paths of a state's files below the directory.
func ManifestName(generation uint64, rank int, v Version) string {
	return generationName(generation) + "/" + fileName(rank, v, kindManifest)
}

func WeightsName(generation uint64, rank int, v Version) string {
	return generationName(generation) + "/" + fileName(rank, v, kindWeights)
}

// ReadManifest checks raw as a manifest with that name, and returns its config.
func ReadManifest(raw []byte, generation uint64, rank int, v Version) (config []byte, err error) {
	m, _, err := parseManifest(raw)
	if err != nil {
		return nil, err
	}
	return m.config(), m.check(generation, rank, v)
}

// Dir returns the directory that w was opened in.
func (w *Workspace) Dir() string { return w.dir }

// Forget makes v read again the part that it has in memory.
func (v *View) Forget() { v.part = -1 }

// ParseName reports whether name is a name of this package, and returns it formatted again.
func ParseName(name string) (again string, ok bool) {
	if e, ok := parseEntry(name); ok {
		return e.name(), true
	}
	g, ok := parseGeneration(name)
	return generationName(g), ok
}
