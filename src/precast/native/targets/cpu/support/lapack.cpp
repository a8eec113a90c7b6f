// Locates LAPACK: the library that PRECAST_LAPACK names, else the one that `pip install precast[lapack]` installs, else the
// system's. In Python, loading a package has already loaded the second; from C, the search path decides.
#include "lapack.h"

#include <dlfcn.h>
#include <omp.h>

#include <cstdlib>
#include <string>

namespace precast {

namespace {

struct library {
    void* handle = nullptr;
    std::string prefix, problem;

    library() {
        const char* told = std::getenv("PRECAST_LAPACK");
        const char* known[] = {"libscipy_openblas.so", "liblapack.so.3", "libopenblas.so.0"};
        if (told && *told) open(told);
        else
            for (const char* name : known)
                if (!handle) open(name);
        if (!handle) return;
        using setter = void(int);
        // It has its own threads: as many as everything else here uses.
        if (auto* set = reinterpret_cast<setter*>(find("openblas_set_num_threads"))) set(omp_get_max_threads());
    }
    void* find(const char* name) const { return handle ? dlsym(handle, (prefix + name).c_str()) : nullptr; }

private:
    void open(const char* name) {
        void* opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!opened) {
            const char* why = dlerror();
            problem += std::string(problem.empty() ? "" : "; ") + (why ? why : name);
            return;
        }
        for (const char* each : {"scipy_", ""})
            if (dlsym(opened, (std::string(each) + "dgetrf_").c_str())) {
                handle = opened;
                prefix = each;
                return;
            }
        problem += std::string(problem.empty() ? "" : "; ") + name + " has no dgetrf_";
    }
};

}  // namespace

void* find_lapack(const char* name) {
    static const library found;
    void* address = found.find((std::string(name) + "_").c_str());
    if (address) return address;
    if (found.handle) fail(PRECAST_FAILED, "the library for linear algebra has no %s", name);
    else
        fail(PRECAST_FAILED,
             "no library for linear algebra (%s); pip install 'precast[lapack]', or let PRECAST_LAPACK be the path of one",
             found.problem.c_str());
    return nullptr;
}

}  // namespace precast
