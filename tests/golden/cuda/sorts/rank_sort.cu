// Each element counts how many belong before it and goes there (stable), with keys and values.
extern "C" __global__ void rank_sort(const float *keys, const int *values, float *keys_out, int *values_out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float k = keys[i];
    int rank = 0;
    for (int j = 0; j < n; j++) rank += keys[j] < k || (keys[j] == k && j < i);
    keys_out[rank] = k;
    values_out[rank] = values[i];
}
