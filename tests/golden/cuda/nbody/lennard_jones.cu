// Potential energy with a cutoff on a periodic box, in double.
extern "C" __global__ void lennard_jones(const double3 *p, double *energy, int n, double box, double cutoff) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double e = 0.0;
    for (int j = 0; j < n; j++) {
        if (j == i) continue;
        double dx = p[i].x - p[j].x, dy = p[i].y - p[j].y, dz = p[i].z - p[j].z;
        dx -= box * rint(dx / box);
        dy -= box * rint(dy / box);
        dz -= box * rint(dz / box);
        double r2 = dx * dx + dy * dy + dz * dz;
        if (r2 > cutoff * cutoff) continue;
        double s = 1.0 / r2, s3 = s * s * s;
        e += 2.0 * (s3 * s3 - s3);
    }
    energy[i] = e;
}
